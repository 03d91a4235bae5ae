#include "cuda/attention/scores/mask_host.hpp"

#include <algorithm>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "expression/mask_band.hpp"
#include "expression/tokens.hpp"
#include "onepass/error.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::cuda {
namespace {

// Keys of a tile of the packed mask: of a block of the kernel, or of the two that share a word.
int mask_block(const TileShape& tile) { return std::max(tile.block_n, 32); }

struct PackedShape {  // of the packed mask; dimensions that repeat have size 1
  std::int64_t batch, heads, rows, words, tile_rows;
  std::int64_t bits_words() const { return batch * heads * rows * words; }
  std::int64_t tile_bytes() const { return batch * heads * tile_rows * words; }
  std::int64_t fragment_words() const { return tile_bytes() * 64; }
};

// Bits of a mask_mod at most: those of 128k rows and keys that all heads share.
constexpr std::int64_t kMostModBytes = std::int64_t{2} << 30;

constexpr int kModSharedBytes = 3 * 32 * 4;  // of scores/mod_bits.cuh: three numbers for each word of a strip

bool has_word(std::string_view source, std::string_view word) {
  Tokens tokens("", source);
  for (tokens.next(); !tokens.token().empty(); tokens.next())
    if (tokens.token() == word) return true;
  return false;
}

PackedShape packed_shape_of(const Problem& p, const TileShape& tile) {
  const BroadcastDims& s = *p.bool_mask;
  const std::int64_t rows = s.rows ? p.seq_q : 1;
  // Whole blocks of keys, rows of words aligned to 16 bytes.
  const std::int64_t words = round_up(round_up(p.seq_k, mask_block(tile)) / 32, 4);
  return {s.batch ? p.batch : 1, s.heads ? p.heads_q : 1, rows, words, ceil_div(rows, 64)};
}

}  // namespace

KernelProgram mask_program(const std::string& arch) {
  return {"cuda/attention/scores/mask_bits.cuh", "pack_mask", "", arch, "", ""};
}

KernelProgram mod_program(const Problem& callers, const std::string& arch) {
  Problem mask = callers;
  mask.score_mod.clear();
  ForwardFeatures features = features_of(mask);
  const std::string config =
      text(features_source(features),
           "namespace onepass {\nconstexpr bool kReadsMask = ", callers.bool_mask ? "true" : "false", ";\n}\n");
  return {"cuda/attention/scores/mod_bits.cuh",         "pack_mod", config, arch,
          mods_source(mask) + mask_bounds_source(mask), ""};
}

MaskBand mask_band(const Problem& p) {
  MaskBand none;
  none.whole = false;
  const bool free = !p.band.causal && p.band.left < 0 && p.band.right < 0,
             distances = p.alibi && p.band.align != Align::top_left;  // are counted from where a row is aligned
  if (p.mask_mod.empty() || !free || distances) return none;
  try {
    return band_of(read_expression(ModKind::mask, p.mask_mod, p.mod_buffers));
  } catch (const Error&) {  // text for the CUDA compiler alone
    return none;
  }
}

namespace {
std::shared_ptr<Problem> banded(const Problem& callers, const MaskBand& band) {
  auto out = std::make_shared<Problem>(callers);
  if (band.bounded())
    out->band = {.causal = band.right == 0,
                 .align = Align::top_left,
                 .left = band.left,
                 .right = band.right == 0 ? -1 : band.right,
                 .offset = 0};
  if (band.whole) out->mask_mod.clear();
  return out;
}
}  // namespace

std::shared_ptr<const Problem> packed_problem(const std::shared_ptr<const Problem>& callers) {
  if (callers->mask_mod.empty()) return callers;
  const MaskBand band = mask_band(*callers);
  auto packed = banded(*callers, band);
  if (band.whole) return packed;
  const BroadcastDims given = callers->bool_mask.value_or(BroadcastDims{});
  const BroadcastDims spans{given.batch || has_word(callers->mask_mod, "batch"),
                            given.heads || has_word(callers->mask_mod, "head"), true, true};
  const std::int64_t masks = (spans.batch ? callers->batch : 1) * (spans.heads ? callers->heads_q : 1);
  if (masks * callers->seq_q * (callers->seq_k / 8) > kMostModBytes) return packed;
  packed->bool_mask = spans;
  packed->mask_mod.clear();
  return packed;
}

const char* packing_of(const Problem& callers, const Problem& packed) {
  const bool banded = callers.band != packed.band;
  if (callers.mask_mod == packed.mask_mod)
    return callers.mask_mod.empty() ? "" : banded ? ", mask_mod evaluated within its band" : ", mask_mod evaluated";
  return mask_band(callers).whole ? ", mask_mod computed as a band"
         : banded                 ? ", mask_mod packed into bits within its band, empty tiles skipped"
                                  : ", mask_mod packed into bits, empty tiles skipped";
}

std::size_t mask_bytes(const Problem& p, const TileShape& tile, bool fragments) {
  if (!p.bool_mask) return 0;
  const PackedShape s = packed_shape_of(p, tile);
  return static_cast<std::size_t>(s.bits_words() * 4 + s.tile_bytes() + (fragments ? s.fragment_words() * 4 : 0));
}

MaskPlan plan_mask(const Problem& p, const TileShape& tile, bool fragments) {
  const PackedShape s = packed_shape_of(p, tile);
  const Dims& stride = p.layout.bool_mask;
  MaskPlan out{};
  MaskPackParams& k = out.pack;
  std::copy(stride.begin(), stride.end(), k.stride);
  k.heads = static_cast<int>(s.heads);
  k.rows = static_cast<int>(s.rows);
  k.keys = static_cast<int>(p.seq_k);
  k.block_m = std::max(tile.block_m, 64);  // a state counts for 64 rows, and one CTA writes it
  k.block_n = mask_block(tile);
  k.m_tiles = static_cast<int>(ceil_div(s.rows, k.block_m));
  // Tiles of one word: the padding's too, so that those of a backward pass's block of keys are read at once.
  k.n_blocks = static_cast<int>(k.block_n == 32 ? s.words : ceil_div(p.seq_k, k.block_n));
  k.units = s.batch * s.heads * k.m_tiles * k.n_blocks;
  out.fragments_at = fragments ? s.bits_words() : 0;
  out.tiles_at = s.bits_words() + (fragments ? s.fragment_words() : 0);
  const BroadcastDims& spans = *p.bool_mask;
  const long long bits[3] = {s.heads * s.rows * s.words, s.rows * s.words, s.words},
                  tiles[3] = {s.heads * s.tile_rows * s.words, s.tile_rows * s.words, s.words};
  const bool spanned[3] = {spans.batch, spans.heads, spans.rows};
  for (int i = 0; i < 3; ++i) {
    out.bits.bits_stride[i] = k.bits_stride[i] = spanned[i] ? bits[i] : 0;
    out.bits.tile_stride[i] = k.tile_stride[i] = spanned[i] ? tiles[i] : 0;
    k.fragments.stride[i] = k.tile_stride[i] * 64;
  }
  return out;
}

long long mod_units(const MaskPackParams& p) {
  const int block_words = p.block_n / 32, strip = 32 / block_words * block_words;
  return p.units == 0 ? 0 : p.units / p.n_blocks * ceil_div(p.n_blocks * block_words, strip);
}

MaskPlan MaskPlan::at(const void* mask, void* workspace) const {
  MaskPlan out = *this;
  MaskPackParams& k = out.pack;
  k.mask = static_cast<const unsigned char*>(mask);
  k.bits = static_cast<unsigned*>(workspace);
  k.fragments.words = fragments_at > 0 ? k.bits + fragments_at : nullptr;
  k.tiles = reinterpret_cast<unsigned char*>(k.bits + tiles_at);
  out.bits.bits = k.bits;
  out.bits.tiles = k.tiles;
  return out;
}

PackedMask::PackedMask(Kernels& kernels, const Problem& p, const TileShape& tile,
                       const std::shared_ptr<const Problem>& callers, bool fragments) {
  if (!p.bool_mask) return;
  plan_ = plan_mask(p, tile, fragments);
  of_mod_ = p.mask_mod.empty() && !callers->mask_mod.empty() && !mask_band(*callers).whole;
  if (of_mod_) {
    plan_.pack.units = mod_units(plan_.pack);
    kernel_ = kernels.add(
        std::tuple{callers->mask_mod, mods_key(*callers), features_of(*callers), callers->bool_mask.has_value()},
        kModSharedBytes, [callers](const auto&, const std::string& arch) { return mod_program(*callers, arch); });
    return;
  }
  kernel_ = kernels.add(0, 0, [](int, const std::string& arch) { return mask_program(arch); });
}

void PackedMask::pack(const Call& call, void* workspace, MaskBits& bits, MaskFragments* fragments) const {
  if (!kernel_) return;
  MaskPlan plan = plan_.at(call.tensors.bool_mask.data, workspace);
  if (of_mod_) {
    ModPackParams params{plan.pack, {}};
    fill_mod_buffers(call.tensors, params.buffers);
    call.launch(*kernel_, {std::min<std::int64_t>(plan.pack.units, 8 * call.device.multiprocessors), 256}, params);
  } else {
    call.launch(*kernel_, {std::min<std::int64_t>(plan.pack.units, 8 * call.device.multiprocessors), 256}, plan.pack);
  }
  bits = plan.bits;
  if (fragments) *fragments = plan.pack.fragments;
}

}  // namespace onepass::cuda
