// Block masks: the states of tiles, a strip of row tiles at a time, become lists.
#include "expression/block_mask/block_mask.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text.hpp"
#include "expression/mask_bounds.hpp"
#include "expression/scalar.hpp"
#include "expression/tokens.hpp"
#include "onepass/error.hpp"

namespace onepass {
namespace {

constexpr std::int64_t kStrip = 64;  // row tiles whose states are in memory

// The same tiles, by tiles of keys.
TileLists by_keys(const BlockMaskShape& s, const TileLists& of_rows) {
  const std::int64_t rows = s.row_tiles(), keys = s.key_tiles(), heads = s.batch * s.heads;
  TileLists out;
  out.begin.assign(static_cast<std::size_t>(heads * keys + 1), 0);
  out.tiles.resize(of_rows.tiles.size());
  const auto each = [&](auto&& f) {
    for (std::int64_t list = 0; list < heads * rows; ++list)
      for (const std::int32_t key : of_rows.of(list))
        f(static_cast<std::size_t>(list / rows * keys + key), static_cast<std::int32_t>(list % rows));
  };
  each([&](std::size_t to, std::int32_t) { ++out.begin[to + 1]; });
  for (std::size_t i = 1; i < out.begin.size(); ++i) out.begin[i] += out.begin[i - 1];
  std::vector<std::int64_t> next(out.begin.begin(), out.begin.end() - 1);
  each([&](std::size_t to, std::int32_t row) { out.tiles[static_cast<std::size_t>(next[to]++)] = row; });
  return out;
}

void end_list(TileLists& lists) { lists.begin.push_back(lists.count()); }

// states(batch, head, row tile, row tiles, to): the states of a strip, [row tiles][tiles of keys].
template <class States>
BlockMask from_states(const BlockMaskShape& s, States states) {
  BlockMask m{.shape = s, .mixed = {}, .full = {}, .mixed_rows = {}, .full_rows = {}};
  const std::int64_t keys = s.key_tiles();
  std::vector<Tile> strip(static_cast<std::size_t>(std::min(kStrip, s.row_tiles()) * keys));
  for (std::int64_t bh = 0; bh < s.batch * s.heads; ++bh) {
    for (std::int64_t row = 0; row < s.row_tiles(); row += kStrip) {
      const std::int64_t rows = std::min(kStrip, s.row_tiles() - row);
      if (keys > 0) states(bh / s.heads, bh % s.heads, row, rows, strip.data());
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t k = 0; k < keys; ++k) {
          const Tile state = strip[static_cast<std::size_t>(r * keys + k)];
          if (state != Tile::skip)
            (state == Tile::full ? m.full : m.mixed).tiles.push_back(static_cast<std::int32_t>(k));
        }
        end_list(m.mixed), end_list(m.full);
      }
    }
  }
  m.mixed_rows = by_keys(s, m.mixed);
  m.full_rows = by_keys(s, m.full);
  return m;
}

// Rows and keys of a tile, within the sequences.
MaskBox box_of(const BlockMaskShape& s, std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t rows,
               std::int64_t key, std::int64_t keys) {
  return {batch,          batch,
          head,           head,
          row * s.tile_q, std::min((row + rows) * s.tile_q, s.seq_q) - 1,
          key * s.tile_k, std::min((key + keys) * s.tile_k, s.seq_k) - 1};
}

// Looks at the elements of a tile.
class Elements {
 public:
  Elements(const Expression& mask, const std::vector<NamedTensor>& buffers)
      : numbers_(mask.steps.size() * kExprBlock),
        integers_(mask.steps.size() * kExprBlock),
        run_(mask, buffers, {numbers_.data(), integers_.data()}) {}
  Tile state(const MaskBox& box) {
    const auto head = static_cast<std::int32_t>(box.head_lo);
    scores_.resize(static_cast<std::size_t>(box.key_hi - box.key_lo + 1));
    bool any = false, all = true;
    for (std::int64_t row = box.row_lo; row <= box.row_hi && (!any || all); ++row) {
      const auto at = static_cast<std::int32_t>(row);
      std::fill(scores_.begin(), scores_.end(), 1.0f);
      const auto keys = static_cast<std::int64_t>(scores_.size());
      run_.hide({scores_.data(), 1, 1, keys, static_cast<std::int32_t>(box.batch_lo), box.key_lo, &head, &at}, 0.0f);
      for (const float x : scores_) any = any || x != 0, all = all && x != 0;
    }
    return all ? Tile::full : any ? Tile::partial : Tile::skip;
  }

 private:
  std::vector<float> numbers_, scores_;
  std::vector<std::int32_t> integers_;
  ExprRun<float, ScalarFunctions> run_;
};

}  // namespace

void check_block_mask(const BlockMaskShape& s) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const auto& [name, value, least] : {std::tuple{"batch", s.batch, 1},
                                           {"heads", s.heads, 1},
                                           {"seq_q", s.seq_q, 0},
                                           {"seq_k", s.seq_k, 0},
                                           {"tile_q", s.tile_q, 1},
                                           {"tile_k", s.tile_k, 1}})
    want(value >= least && value <= kMost, ErrorCode::bad_shape, name, " of a block mask must be from ", least, " to ",
         kMost, " (got ", value, ")");
}

BlockMaskText read_block_mask(std::string_view mask_mod, const std::vector<NamedTensor>& mod_buffers,
                              const BlockMaskShape& s, Device device) {
  check_block_mask(s);
  want(mod_buffers.size() <= kMaxModBuffers, ErrorCode::bad_value, "mod_buffers must be at most ", kMaxModBuffers,
       " (got ", mod_buffers.size(), ")");
  std::vector<ModBuffer> specs;
  for (const auto& [name, t] : mod_buffers) {
    check_mod_name(name);
    want(t.given() && t.elements() > 0, ErrorCode::bad_shape, "the mod buffer ", name, " must have elements");
    if (device.kind == DeviceKind::cpu)
      want(t.device.kind == DeviceKind::cpu, ErrorCode::bad_device, "the mod buffer ", name, " must be in CPU memory");
    else
      want(t.device == device, ErrorCode::bad_device, "the mod buffer ", name, " must be on ", to_string(device),
           ", as states (got ", to_string(t.device), ")");
    want(t.dtype != DType::f8e4m3 && t.dtype != DType::i64, ErrorCode::bad_dtype, "the mod buffer ", name,
         " must be float32, float16, bfloat16, int32 or bool");
    specs.push_back({name, t.dtype, t.rank, t.shape});
  }
  check_mod_text("mask_mod", mask_mod);
  return {std::string(mask_mod), specs, read_expression(ModKind::mask, mask_mod, specs)};
}

inline namespace v0 {

BlockMask block_mask(std::string_view mask_mod, const std::vector<NamedTensor>& mod_buffers, const BlockMaskShape& s,
                     bool exact) {
  const Expression mask = read_block_mask(mask_mod, mod_buffers, s).mask;
  const MaskBounds bounds(mask, mod_buffers, std::numeric_limits<std::int64_t>::max());
  Elements elements(mask, mod_buffers);
  return from_states(s, [&](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t rows, Tile* to) {
    bounds.classify_tiles(box_of(s, b, h, row, rows, 0, s.key_tiles()), s.tile_q, s.tile_k, to, s.key_tiles());
    for (std::int64_t r = 0; exact && r < rows; ++r)
      for (std::int64_t k = 0; k < s.key_tiles(); ++k)
        if (Tile& state = to[r * s.key_tiles() + k]; state == Tile::partial)
          state = elements.state(box_of(s, b, h, row + r, 1, k, 1));
  });
}

BlockMask block_mask(const ConstTensor& mask, std::int64_t tile_q, std::int64_t tile_k) {
  want(mask.rank >= 2 && mask.rank <= 4, ErrorCode::bad_shape, "bool_mask must have 2 to 4 dimensions (got ", mask.rank,
       ")");
  want(mask.dtype == DType::boolean, ErrorCode::bad_dtype, "bool_mask must be bool");
  want(mask.device.kind == DeviceKind::cpu, ErrorCode::bad_device, "bool_mask must be in CPU memory");
  const auto of = [&](int back) {
    return mask.rank >= back ? mask.shape[static_cast<std::size_t>(mask.rank - back)] : 1;
  };
  const auto stride = [&](int back) {
    return mask.rank >= back ? mask.stride[static_cast<std::size_t>(mask.rank - back)] : 0;
  };
  const BlockMaskShape s{of(4), of(3), of(2), of(1), tile_q, tile_k};
  check_block_mask(s);
  const auto* const data = static_cast<const std::uint8_t*>(mask.data);
  return from_states(s, [&](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t rows, Tile* to) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t k = 0; k < s.key_tiles(); ++k) {
        const MaskBox box = box_of(s, b, h, row + r, 1, k, 1);
        bool any = false, all = true;
        for (std::int64_t i = box.row_lo; i <= box.row_hi && (!any || all); ++i) {
          const std::uint8_t* const at = data + b * stride(4) + h * stride(3) + i * stride(2);
          for (std::int64_t j = box.key_lo; j <= box.key_hi; ++j)
            any = any || at[j * stride(1)] != 0, all = all && at[j * stride(1)] != 0;
        }
        to[r * s.key_tiles() + k] = all ? Tile::full : any ? Tile::partial : Tile::skip;
      }
    }
  });
}

BlockMask block_mask(const BlockMaskShape& s, TileLists mixed, TileLists full) {
  check_block_mask(s);
  const auto lists = static_cast<std::size_t>(s.batch * s.heads * s.row_tiles());
  for (const auto& [name, l] : {std::pair{"mixed", &mixed}, {"full", &full}}) {
    want(l->begin.size() == lists + 1, ErrorCode::bad_shape, name, ".begin must have ", lists + 1, " entries (got ",
         l->begin.size(), ")");
    want(l->begin.front() == 0 && l->begin.back() == l->count() && std::ranges::is_sorted(l->begin),
         ErrorCode::bad_value, name, ".begin must ascend from 0 to the number of tiles, ", l->count());
    for (std::size_t i = 0; i < lists; ++i) {
      std::int64_t before = -1;
      for (const std::int32_t tile : l->of(static_cast<std::int64_t>(i))) {
        want(tile > before && tile < s.key_tiles(), ErrorCode::bad_value, "list ", i, " of ", name,
             " must ascend within ", s.key_tiles(), " tiles (got ", tile, " after ", before, ")");
        before = tile;
      }
    }
  }
  for (std::size_t i = 0; i < lists; ++i) {
    const auto a = mixed.of(static_cast<std::int64_t>(i)), b = full.of(static_cast<std::int64_t>(i));
    for (const std::int32_t tile : a)
      want(!std::ranges::binary_search(b, tile), ErrorCode::bad_value, "tile ", tile, " of list ", i,
           " must be mixed or full, not both");
  }
  BlockMask m{.shape = s, .mixed = std::move(mixed), .full = std::move(full), .mixed_rows = {}, .full_rows = {}};
  m.mixed_rows = by_keys(s, m.mixed);
  m.full_rows = by_keys(s, m.full);
  return m;
}

}  // namespace v0
}  // namespace onepass
