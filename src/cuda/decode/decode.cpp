#include "cuda/decode/decode.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>

#include "algebra/ceil_div.hpp"
#include "algebra/split.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/compile/wgmma_source.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/sm80/host.hpp"
#include "cuda/sm90/host.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/roles.hpp"

namespace onepass::decode {
namespace {

// The first row that computes the head dims is taken. A tile of keys is 4 to 16 KB of K or V; a warp holds at most
// row_tiles times sixteen rows of O, and where there are more the warps of a team share them.
struct TileConfig {
  int dim_qk, dim_v;  // up to these head dims
  int row_tiles, block_n, warps;
  int halves = 1;
};
constexpr TileConfig kConfigs16[] = {
    {64, 64, 2, 32, 8}, {128, 128, 2, 16, 8}, {256, 256, 1, 16, 8}, {576, 512, 1, 16, 8, 2}};
// Tiles for e4m3 k and v: twice the keys have the same bytes. One row tile has four times the keys, because the fixed
// cost of a tile (a third of all instructions) is then paid half as often (b64 x 4k 2.5 % faster).
constexpr TileConfig kConfigs8[] = {{64, 64, 2, 64, 8}, {128, 128, 2, 64, 8}, {256, 256, 1, 32, 8}};
constexpr TileConfig kConfigs32[] = {
    {64, 64, 1, 16, 8}, {128, 128, 1, 16, 8}, {256, 256, 1, 16, 4}, {576, 512, 1, 16, 8, 4}};
constexpr int kMaxSlots = 8, kMinSlots = 2, kMinSlotsOfTwo = 3;  // OfTwo: if CTAs share a multiprocessor
constexpr int kMaxWarps = 8;
constexpr std::int64_t kKeysOfRow = 4;  // at least, with more than one query: below, Q and O are a large part

// CTAs that share a multiprocessor. With batch_invariant few rows have the teams of many rows, and at most half of
// their warps: one such CTA does not keep memory busy.
int blocks_at_once(const ForwardFeatures& features, const DecodeConfig& c, int shared_bytes) {
  constexpr int kReserved = 1 << 10;  // of each
  if (c.piece == 0 || c.row_blocks || 2 * c.warps > kMaxWarps) return 1;
  return 2 * (layout_of(features, c).total + kReserved) <= shared_bytes + kReserved ? 2 : 1;
}

class State final : public cuda::KernelState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, DecodeConfig config, const cuda::Part& part)
      : KernelState(request, device),
        config_(config),
        most_(device.multiprocessors * blocks_at_once(cuda::features_of(*problem), config, device.shared_bytes)),
        sharing_(sharing_of(*problem, config, config.row_blocks ? 1 : heads_together(*problem, most_))),
        share_(share_of(*problem, sharing_, most_)),
        early_(part.early),
        maps_(key_maps(*problem, config)),
        decided_(decided_params(*problem, config, sharing_, share_, part)) {
    idle_ = groups_of(*problem, sharing_) == 0 || rows_of(*problem) == 0;  // without query heads, too
    workspace_bytes = idle_ ? 0 : workspace_bytes_of(*problem, sharing_, share_.blocks);
    const ForwardFeatures features = cuda::features_of(*problem);
    const auto values = [&](bool even) {
      config.even = even;
      return std::tuple{features, config, cuda::mods_key(*problem)};
    };
    const auto print = [p = problem](const auto& all, const std::string& arch) {
      const auto& [f, c, mods] = all;
      return program_of(f, c, arch, mods_of(*p));
    };
    const bool even = share_.splits != 0;
    kernel_ = kernels_.add(values(even), layout_of(features, config).total, print);
    if (even || may_be_even(*problem, sharing_)) kernels_.add_elsewhere(values(!even), print);
  }

  std::string describe() const override {
    const DecodeConfig& c = config_;
    return text(rows_of(*problem), " rows per K/V head", c.row_blocks ? text(" in blocks of ", c.rows) : "", ", ",
                c.prompts ? text(c.wgmma() ? text(c.warps / 4, " warpgroups") : text(c.warps, " warps"),
                                 " with all keys of their rows")
                : c.shares_tiles() ? text(c.warps, " warps, ", c.parts, " of them with a part of each tile")
                                   : text(c.warps, " warps in ", c.share, " teams"),
                ", tiles of ", c.block_n, " keys, ", c.slots, " tiles prefetched per team, ",
                sentence_of(share_, sharing_), ", ", c.copy_bytes, "-byte copies, ", kernel_->shared_bytes,
                " bytes of shared memory");
  }

 private:
  void launch(const cuda::Call& call) const override {
    DecodeParams params = decided_;
    bind(params, call.tensors, call.workspace);
    params.counters = counters_of(call);
    const cuda::Grid by{share_.blocks * sharing_.co_scheduled, config_.all_threads(), early_};
    if (config_.copy_warps == 0) return call.launch(*kernel_, by, params);
    CopiedParams copied{maps_.at(params, cuda::tensor_map), params};
    call.launch(*kernel_, by, copied);
  }

  const DecodeConfig config_;
  const int most_;  // CTAs at a time
  const Sharing sharing_;
  const Share share_;
  const bool early_;
  const KeyMapShapes maps_;
  const DecodeParams decided_;
  const cuda::PlannedKernel* kernel_;
};

template <Rows rows>
Selected<DecodeConfig> config_on(const cuda::DeviceFacts& device, const Problem& p) {
  if (device.major < 8) return refuse(cuda::why_too_old(device));
  return select_config(p, device.shared_bytes, device.major == 9, rows);
}

constexpr int kParts = 4, kPartedKeys = 64;  // of a tile

// Rows of K and V that TMA loads at once; 0: the copying warps do without, with more instructions.
int box_rows_of(const Problem& p) {
  for (const Role role : {Role::k, Role::v})
    if (!sm90::why_no_tma(p, role).empty()) return 0;
  const auto rows = static_cast<int>(p.paged() ? std::gcd(p.page_size, std::int64_t{kPartedKeys}) : kPartedKeys);
  return rows < 8 ? 0 : rows;
}

// Single tokens whose tiles gain by parts: 0.87 to 0.98 of the time on an H200 within these bounds. Beyond them 1.02
// for 512k keys, 1.23 for one K/V head, 1.06 for 300 keys each; head dim 64 in 0.93 to 1.02.
bool are_few_tokens(const Problem& p) {
  constexpr std::int64_t kGroups = 8, kKeys = 512, kAllKeys = 384 << 10;
  const std::int64_t groups = p.batch * p.heads_kv;
  return p.seq_q == 1 && rows_of(p) <= 16 && groups >= kGroups && p.seq_k >= kKeys && groups * p.seq_k <= kAllKeys;
}

// Rows whose tiles have parts with sums of their own: those with one result, whatever their number. Where warps copy by
// TMA also few single tokens, and 64 rows (32 drafts of 16 at 8k in 0.71 of the time; 32 rows in 0.99 to 1.4, head dim
// 64 in 1.1 to 1.2).
bool has_parts(const Problem& p, const AttentionFeatures& f, bool by_tma) {
  const bool gains = by_tma && std::max(f.dim_qk, f.dim_v) > 64 && (rows_of(p) > 32 || are_few_tokens(p));
  return (p.batch_invariant || gains) && !p.unified_max && !p.entropy && f.input != ScalarType::f32 &&
         f.keys != ScalarType::e4m3 && std::max(f.dim_qk, f.dim_v) <= 128 && !f.dropout && !f.score_mod &&
         !f.mask_mod && !f.bool_mask && f.bias == ScalarType::none;
}

// Warps for prompts. Three warpgroups hide more of their softmax than two (d64 in 0.8 of the time), but have registers
// for few features, and their larger blocks are fewer: there must be two for nearly each multiprocessor of an H100.
int warps_for_prompts(const Problem& p, const ForwardFeatures& features, const DecodeConfig& c) {
  constexpr std::int64_t kLargeBlocks = 200;
  const AttentionFeatures& f = features.attention;
  const bool many = p.batch * p.heads_kv * ceil_div(rows_of(p), 16 * kMaxPromptWarps) >= kLargeBlocks;
  const bool plain = !f.transforms() && !f.tree && !features.row_max;
  return c.copy_warps != 0 && many && plain ? kMaxPromptWarps : 8;
}

// Blocks of 256 rows, whose tiles all warps share, in place of 64: a prompt of 4k at 8k keys takes 0.88 of the time.
// There must be enough of them for an H100.
bool fills_large_blocks(const Problem& p) {
  constexpr std::int64_t kLargeRows = 256, kLargeBlocks = 200;
  return p.batch * p.heads_kv * (rows_of(p) / kLargeRows) >= kLargeBlocks;
}

// Sequences of few rows among others have kernels of their own in cuda.mixed.
Decision plan_alone(const Request& request) {
  const Problem& p = *request.problem;
  const bool mixed = p.varlen && !p.packed_k() && p.group() <= kMaxRows && rows_of(p) > kMaxRows;
  if (p.batch_invariant && mixed)
    return Decision::no("does not support packed rows over a cache with batch_invariant; cuda.mixed does");
  return plan(request, {});
}
Decision plan_fp8_alone(const Request& request) { return plan_fp8(request, {}); }

bool has_few_rows(const Problem& p) {
  return rows_of(p) <= kMaxRows && (p.seq_q <= 1 || p.batch_invariant || p.seq_k >= kKeysOfRow * rows_of(p));
}

}  // namespace

Decision plan(const Request& request, const cuda::Part& part) {
  return cuda::plan_on_device<State>(request, config_on<Rows::few>, part);
}
Decision plan_fp8(const Request& request, const cuda::Part& part) {
  return cuda::plan_on_device<State>(request, config_on<Rows::any_fp8>, part);
}

std::optional<DecodeConfig> for_prompts(const ForwardFeatures& features, DecodeConfig c, int shared_bytes, int warps) {
  constexpr int kMinPairs = 2;
  c.prompts = true, c.halves = 1, c.warps = warps, c.row_tiles = 1, c.rows = 16 * c.warps;
  for (c.slots = kMaxSlots; c.slots > 2 * kMinPairs && layout_of(features, c).total > shared_bytes; c.slots -= 2) {
  }
  if (layout_of(features, c).total > shared_bytes) return {};
  return c;
}

std::optional<DecodeConfig> in_large_blocks(const ForwardFeatures& features, DecodeConfig c, int shared_bytes) {
  c.share = 1, c.rows = 16 * c.row_tiles * c.warps / c.halves;
  for (c.slots = kMaxSlots; c.slots > kMinSlots && layout_of(features, c).total > shared_bytes; --c.slots) {
  }
  if (layout_of(features, c).total > shared_bytes) return {};
  return c;
}

Selected<DecodeConfig> select_config(const Problem& p, int shared_bytes, bool hopper, Rows kind) {
  const bool any_fp8 = kind == Rows::any_fp8;
  if (any_fp8 && p.key_dtype() != DType::f8e4m3)
    return refuse("requires fp8_e4m3 k and v (k is ", name_of(p.key_dtype()), ")");
  if (p.dtype == DType::f8e4m3 && !any_fp8) return refuse(why_no_fp8(p));
  if (std::string sentence = why_no_other_keys(p); !sentence.empty()) return refuse(sentence);
  const bool fp8 = p.key_dtype() == DType::f8e4m3;
  if (fp8 && p.dtype == DType::f32) return refuse("with an FP8 cache, q must be fp16 or bf16 (got fp32)");
  for (const Role role : {Role::q, Role::k, Role::v}) {
    if (fp8 && !any_fp8 && cuda::row_alignment(p, role) < 4)
      return refuse("with fp8_e4m3 k and v, rows of ", row_of(role).name, " must be 4-byte aligned (alignment is ",
                    cuda::row_alignment(p, role), ")");
  }
  if (p.v_mean && (!any_fp8 || p.dropout_p > 0))
    return refuse("does not support v_mean", any_fp8 ? " with dropout" : "");
  if (fp8 && std::max(p.dim_qk, p.dim_v) > 256)
    return refuse("with fp8_e4m3 k and v, head dims must be at most 256 (got ", p.dim_qk, "/", p.dim_v, ")");
  const bool row_blocks = any_fp8 ? !has_few_rows(p) : p.batch_invariant && !p.unified_max && rows_of(p) > kMaxRows;
  if (rows_of(p) > kMaxRows && !row_blocks) {
    return refuse("rows per K/V head (seq_q x heads_q / heads_kv) must be at most ", kMaxRows, " (got ", rows_of(p),
                  ")");
  }
  if (!row_blocks && !has_few_rows(p)) {
    return refuse("with seq_q > 1, seq_k must be at least ", kKeysOfRow, " x rows per K/V head (got ", p.seq_k,
                  " keys for ", rows_of(p), " rows)");
  }
  if (std::string sentence = cuda::why_too_many(p); !sentence.empty()) return refuse(sentence);
  const ForwardFeatures features = cuda::features_of(p);
  const std::span<const TileConfig> table = p.dtype == DType::f32 ? std::span<const TileConfig>(kConfigs32)
                                            : fp8                 ? std::span<const TileConfig>(kConfigs8)
                                                                  : kConfigs16;
  TileConfig fitting =
      *std::ranges::find_if(table, [&](const TileConfig& t) { return p.dim_qk <= t.dim_qk && p.dim_v <= t.dim_v; });
  // Two row tiles of fp16 products beside a mask_mod leave no registers to look for shown tiles (112 bytes spilled).
  if (fp8 && !p.mask_mod.empty()) fitting.row_tiles = 1;
  const TileConfig* const s = &fitting;
  const std::int64_t of_block = std::clamp<std::int64_t>(rows_of(p), 1, kMaxRows);
  const int rows = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(of_block)));
  const int row_tiles = std::max(1, rows / 16), held = std::min(row_tiles, s->row_tiles);
  // With batch_invariant a team has room for kMaxRows, whatever the number of rows.
  const int halves =
      p.batch_invariant ? std::min(s->halves, 16 * s->warps * s->row_tiles / static_cast<int>(kMaxRows)) : s->halves;
  if (row_tiles / held * halves > s->warps)
    return refuse("with fp32 head dims beyond 256, rows per K/V head must be at most ", 16 * s->warps / halves * held,
                  " (got ", rows_of(p), ")");
  const AttentionFeatures& f = features.attention;
  const bool plain = !f.transforms() && !f.masks() && !f.dropout, one_result = p.batch_invariant;
  const int most_held = one_result ? s->row_tiles : held;  // tiles do not depend on the rows
  const bool whole = row_blocks && !one_result;            // they have registers for more keys: a third faster
  const bool light = !f.masks() && !f.dropout && !f.tree && f.bias == ScalarType::none;
  const int block_n = !fp8 || (most_held == 1 && plain)                     ? s->block_n  // else registers are short
                      : most_held == 1 || p.dim_v <= 64 || (whole && light) ? 32
                                                                            : 16;
  DecodeConfig c{.kSums = p.dtype == DType::f32 && p.dim_v / halves > 128 ? 2 : 1,
                 .rows = rows,
                 .warps = s->warps,
                 .row_tiles = held,
                 .share = 0,
                 .halves = halves,
                 .block_n = block_n,
                 .slots = 0,
                 .piece = p.batch_invariant ? static_cast<int>(fixed_splits(p.seq_k, block_n).chunk) / block_n : 0,
                 .copy_bytes = std::min({cuda::row_alignment(p, Role::q), cuda::row_alignment(p, Role::k),
                                         cuda::row_alignment(p, Role::v)}),
                 .even = false,
                 .unified = p.unified_max.has_value(),
                 .row_blocks = row_blocks,
                 .parts = 1,
                 .prompts = false,
                 .copy_warps = 0,
                 .box_rows = 0};
  // As many tiles ahead as shared memory holds, and fewer warps where two are too many.
  const auto fits = [&] { return layout_of(features, c).total <= shared_bytes; };
  const auto choose = [&](int team) {  // warps of a team
    for (; c.warps >= team; c.warps /= 2) {
      c.share = c.warps / team;
      for (c.slots = kMaxSlots; c.slots > kMinSlots && !fits(); --c.slots) {
      }
      if (fits()) return;
    }
    c.warps = team, c.share = 1;
  };
  const bool may_copy = hopper && c.copy_bytes == 16;  // smaller copies would pass through registers
  const int box_rows = may_copy ? box_rows_of(p) : 0;
  if (has_parts(p, f, box_rows != 0)) {
    c.parts = c.halves = kParts, c.share = 1;
    c.piece = c.piece * c.block_n / kPartedKeys, c.block_n = kPartedKeys;
    c.box_rows = box_rows, c.copy_warps = box_rows != 0 || (may_copy && row_blocks) ? 4 : 0;
    c.row_tiles = std::min(row_tiles, 2), c.warps = kParts * std::max(1, row_tiles / c.row_tiles);
    for (c.slots = kMaxSlots; c.slots > kMinSlots && !fits(); --c.slots) {
    }
  } else if (one_result) {  // teams divide the keys, so their number does not depend on the rows
    c.rows = kMaxRows, c.row_tiles = s->row_tiles;
    choose(kMaxRows / 16 / c.row_tiles * c.halves);
    c.rows = rows, c.row_tiles = held;
    c.warps = c.share * (row_tiles / held) * c.halves;
  }
  if (c.parts == 1) choose(row_tiles / held * c.halves);
  if (one_result) {
    for (DecodeConfig two = c; two.slots >= kMinSlotsOfTwo; --two.slots) {
      if (blocks_at_once(features, two, shared_bytes) == 2) {
        c = two;
        break;
      }
    }
  }
  if (row_blocks && c.parts > 1) {
    for (const int warps : {warps_for_prompts(p, features, c), 8}) {
      if (const auto prompts = for_prompts(features, c, shared_bytes, warps)) {
        c = *prompts;
        break;
      }
    }
  }
  if (whole && c.row_tiles == 2 && fills_large_blocks(p)) {
    if (const auto large = in_large_blocks(features, c, shared_bytes)) c = *large;
  }
  if (!fits())
    return refuse("two tiles of K and V per warp at head dims ", p.dim_qk, "/", p.dim_v, " do not fit ", shared_bytes,
                  " bytes of shared memory");
  const std::int64_t groups = groups_of(p, sharing_of(p, c));
  if (row_blocks) {  // each is one step of the line, whatever the number of its tiles
    if (std::max(rows_of(p), groups) > cuda::kMaxPosition)
      return refuse(groups, " blocks of rows are too many for 32-bit indices (rows per K/V head are ", rows_of(p), ")");
    return c;
  }
  const int piece = std::max(1, c.piece);
  const std::int64_t tiles = round_up(std::max<std::int64_t>(1, tiles_of(p, c.block_n, piece)), piece);
  if (groups > cuda::kMaxPosition / tiles)
    return refuse(groups, " K/V heads have too many tiles of ", c.block_n, " keys for 32-bit indices");
  return c;
}

Sharing sharing_of(const Problem& p, const DecodeConfig& c, int heads) {
  return {.rows = c.rows,
          .block_n = c.block_n,
          .piece = c.piece,
          .min_tiles = c.min_tiles(),
          .row_blocks = c.row_blocks ? static_cast<int>(ceil_div(rows_of(p), c.rows)) : 1,
          .lead = 0,
          .co_scheduled = heads,
          .own_blocks = c.row_blocks,
          .partials = !c.prompts && (!c.row_blocks || c.piece != 0),
          .by_tiles = c.piece != 0 && !c.row_blocks};
}
DecodeParams decided_params(const Problem& p, const DecodeConfig& c, const Sharing& sharing, const Share& share,
                            const cuda::Part& part) {
  return decided_params(p, sharing, {c.block_m(), c.block_n, c.warps}, share, part);
}

KeyMapShapes key_maps(const Problem& p, const DecodeConfig& c) {
  if (c.copy_warps == 0) return {};
  const sm90::MapRows keys = sm90::rows_of_keys(p);
  const auto shape = [&](const Dims& stride, std::int64_t dim) {
    return cuda::TensorMapShape(p.key_dtype(), {dim, keys.tokens, p.heads_kv, keys.batch},
                                {stride[2], stride[1], stride[0]}, std::max(c.box_rows, 8));
  };
  return {c.box_rows != 0 && keys.any(), shape(p.layout.k, p.dim_qk), shape(p.layout.v, p.dim_v)};
}
KeyMaps KeyMapShapes::at(const DecodeParams& params, cuda::MapTensor map_tensor) const {
  return {map_tensor(keys ? params.k : params.q, k), map_tensor(keys ? params.v : params.q, v)};
}

std::string mods_of(const Problem& p) {
  return cuda::mods_source(p) + (p.mask_mod.empty() ? "" : cuda::mask_bounds_source(p));
}
cuda::KernelProgram program_of(const ForwardFeatures& f, const DecodeConfig& c, const std::string& arch,
                               const std::string& mods) {
  return {"cuda/decode/decode.cuh",
          "attention_decode",
          text(cuda::features_source(f),
               cuda::config_line("cuda/decode/decode_config.hpp", "onepass::mma", "decode::DecodeConfig config", c),
               sm80::products_of(f.attention.input)),
          c.copy_warps ? "sm_90a" : arch,
          mods,
          c.wgmma()
              ? cuda::wgmma_source({c.block_n, round_up(f.attention.dim_v, 16)}, sm90::operand_of(f.attention.input))
              : ""};
}

constinit const Implementation kImplementation{.name = "cuda.decode", .plan = plan_alone, .unified_max = true};
constinit const Implementation kFp8Implementation{.name = "cuda.decode_fp8", .plan = plan_fp8_alone};

}  // namespace onepass::decode
