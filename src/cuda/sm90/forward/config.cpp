// The configs of 16-bit types: the table, and the choice by it.
#include "cuda/sm90/forward/config.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/sm90/forward/forward.hpp"
#include "cuda/sm90/fp8/config.hpp"
#include "cuda/sm90/host.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/roles.hpp"

namespace onepass::sm90 {
namespace {

constexpr int kAny = std::numeric_limits<int>::max();

// The features that a row of the table has registers and shared memory for. plain: band, sinks; light: mask, softcap,
// ALiBi, packing besides; staged: a 16-bit bias by TMA too; any: all.
enum class Work { plain, light, staged, any };

// Features that need registers which a row may not have, alone or together.
enum Crowding : unsigned {
  kNone = 0,
  kRoundedSums = 1,       // a second sum for each row
  kPacked = 2,            // O's last rows leave by plain stores
  kMaskedTransforms = 4,  // masks beyond the band, and transforms
  kCappedBias = 8,
  kRoundedSumsBias = 16,
  kPackedTransforms = 32,
  kTree = 64,
};
unsigned register_pressure(const ForwardFeatures& features) {
  const AttentionFeatures& f = features.attention;
  const bool rounded = features.rounded_sums, bias = f.bias != ScalarType::none;
  const auto if_so = [](bool so, Crowding what) { return so ? what : kNone; };
  return if_so(rounded, kRoundedSums) | if_so(f.own_lengths(), kPacked) |
         if_so(f.masks() && f.transforms(), kMaskedTransforms) | if_so(bias && f.softcap, kCappedBias) |
         if_so(rounded && bias, kRoundedSumsBias) | if_so(f.own_lengths() && f.transforms(), kPackedTransforms) |
         if_so(f.tree, kTree);
}

// Registers of a producer's and of a consumer's thread. Sums to 64 K with 128 producers; what each role was seen to
// need without a spill.
struct Registers {
  int producer, consumer;
};
constexpr Registers kThree{32, 160}, kLean{24, 240}, kWide{40, 232}, kRoomy{56, 224};

// Rows in order; the first that fits is taken. README.md has the measurements behind each.
struct TileConfig {
  int dim_qk, dim_v, queries, reach;  // up to these
  bool bounded;                       // only for bands bounded on the right
  Work work;
  unsigned without;  // the crowding that it has no registers for
  int groups, block_n, stages, q_stages;
  bool cross_tile, ping_pong, q_registers;
  Registers registers, heavy;  // heavy: of packed problems and those of Work::any
  int column_groups = 64;      // where dim_v is at most this. Causal 1k: d64 362 -> 376 TFLOP/s, d128 none, 4k -1 %
  bool early_softmax = true;   // but not with column groups: it spills (d64 causal: -2 %)
  int v_groups = 1;
};
constexpr unsigned kNotThree = kRoundedSums | kPacked | kMaskedTransforms | kCappedBias | kTree;
constexpr unsigned kNotFragments =
    kPacked | kCappedBias | kRoundedSumsBias | kTree;  // Q as fragments takes 16 to 32 registers
constexpr TileConfig kConfigs[] = {
    // dims  queries reach bounded work without
    // groups n stages q | across tiles, turns, Q in registers | registers, heavy
    {64, 64, 2047, kAny, true, Work::staged, kNotFragments,  // no tile quantisation at 1k
     2, 128, 2, 1, true, true, true, kLean, kRoomy},
    {64, 64, kAny, kAny, false, Work::light, kNotThree,  //
     3, 128, 2, 2, true, true, false, kThree, kThree},
    {64, 64, kAny, kAny, false, Work::light, kPackedTransforms,  //
     2, 128, 2, 2, true, true, false, kLean, kRoomy},
    {64, 64, kAny, kAny, false, Work::staged, kNotThree,  //
     3, 128, 2, 1, false, true, false, kThree, kThree},
    {64, 64, kAny, kAny, false, Work::staged, kNotFragments,  //
     2, 128, 2, 1, true, true, true, kLean, kRoomy},
    {128, 128, kAny, 6143, true, Work::light, kPackedTransforms,  //
     2, 128, 2, 2, true, true, false, kLean, kRoomy},
    {128, 128, kAny, 1535, false, Work::light, kPackedTransforms,  //
     2, 128, 2, 2, true, false, false, kLean, kRoomy},
    {128, 128, kAny, kAny, false, Work::plain, kNotThree,  // a third less of K and V from L2
     3, 80, 2, 2, true, true, false, kThree, kThree},
    {128, 128, kAny, kAny, true, Work::light, kPackedTransforms,  //
     2, 128, 2, 2, true, true, false, kLean, kRoomy},
    {128, 128, kAny, kAny, false, Work::light, kPackedTransforms,  //
     2, 128, 2, 2, true, false, false, kLean, kRoomy},
    {128, 128, kAny, kAny, false, Work::staged, kNotFragments,  //
     2, 128, 2, 1, true, true, true, kLean, kRoomy},
    {128, 128, kAny, kAny, false, Work::any, kNone,  //
     2, 64, 2, 2, false, false, false, kLean, kRoomy},
    {192, 128, kAny, kAny, false, Work::light, kPackedTransforms,  //
     2, 96, 2, 1, false, false, false, kWide, kRoomy},
    {192, 192, kAny, kAny, false, Work::light, kPackedTransforms,  //
     2, 80, 2, 1, false, false, false, kWide, kRoomy},
    {192, 192, kAny, kAny, false, Work::staged, kNone,  //
     2, 64, 2, 1, false, false, false, kWide, kRoomy},
    {256, 256, kAny, kAny, false, Work::light, kNone,  //
     2, 64, 2, 1, false, false, false, kWide, kRoomy},
    {256, 256, kAny, kAny, false, Work::any, kNone,  //
     2, 32, 2, 1, false, false, false, kWide, kRoomy},
    {320, 384, kAny, kAny, false, Work::light, kNone,  //
     2, 48, 2, 1, false, false, false, kWide, kRoomy, 64, true, 2},
    {576, 512, kAny, kAny, false, Work::light, kNone,  //
     2, 64, 1, 1, false, false, false, kWide, kRoomy, 64, true, 2},
    {576, 512, kAny, kAny, false, Work::any, kNone,  //
     2, 32, 2, 1, false, false, false, kWide, kRoomy, 64, true, 2},
};
// The number of queries, or of the keys that a row's window shows if they are fewer: the shorter, the more weighs what
// 192 rows waste along the diagonal and at the end.
std::int64_t reach_of(const Problem& p) {
  const BandMask band = band_mask(p, p.seq_q, p.seq_k);
  return band.left < 0 || band.right < 0 ? p.seq_q : std::min<std::int64_t>(p.seq_q, band.left + band.right + 1);
}
Work work_of(const AttentionFeatures& f, bool staged) {
  const bool heavy = f.dropout || f.score_mod || f.mask_mod;
  if (heavy || (f.bias != ScalarType::none && (!staged || f.bias == ScalarType::f32))) return Work::any;
  if (f.bias != ScalarType::none) return Work::staged;
  return f.plain() ? Work::plain : Work::light;
}

int bias_stages_of(const AttentionFeatures& f, const TileConfig& t, bool staged) {
  return staged && t.v_groups == 1 && t.block_n * bytes_of(f.bias) % kBlockColumnBytes == 0 ? 1 : 0;  // whole boxes
}
// Stages of K and V of e4m3 that shared memory has room for beside one of Q: two, one, or none.
int incoming_stages_of(const ForwardFeatures& features, const TileConfig& t, bool staged) {
  constexpr int kSharedBytes = 227 << 10;
  ForwardConfig c{};
  c.groups = t.groups, c.v_groups = 1, c.block_n = t.block_n, c.stages = t.stages, c.q_stages = 1;
  c.bias_stages = bias_stages_of(features.attention, t, staged);
  for (c.incoming_stages = 2; c.incoming_stages > 0 && layout_of(features, c).total > kSharedBytes;)
    --c.incoming_stages;
  return c.incoming_stages;
}

}  // namespace

Selected<ForwardConfig> config_on(const cuda::DeviceFacts& device, const Problem& p) {
  if (device.major != 9) return refuse(why_no_hopper(device));
  return select_config(p);
}

Selected<ForwardConfig> select_config(const Problem& p) {
  if (p.dtype == DType::f32) return refuse("requires fp16 or bf16 (q is fp32)");
  if (std::string sentence = why_no_other_keys(p); !sentence.empty()) return refuse(sentence);
  const bool fp8 = p.dtype == DType::f8e4m3 || p.kv_dtype;
  if (fp8 && std::max(p.dim_qk, p.dim_v) > 256)
    return refuse("with fp8_e4m3 k and v, head dims must be at most 256 (got ", p.dim_qk, "/", p.dim_v, ")");
  for (const Role role : {Role::q, Role::k, Role::v, Role::out}) {
    if (role == Role::out && p.out_dtype == DType::f32) continue;
    if (std::string sentence = why_no_tma(p, role); !sentence.empty()) return refuse(sentence);
  }
  const std::int64_t rows = std::max(p.dim_qk, p.dim_v) > 256 ? 64 : 128;  // of a tile at least
  const std::int64_t tiles = p.batch * p.heads_q * (ceil_div(p.seq_q, rows) + 1);
  if (std::string sentence = cuda::why_too_many(p, tiles); !sentence.empty()) return refuse(sentence);
  if (std::string sentence = cuda::why_no_entropy(p); !sentence.empty()) return refuse(sentence);

  if (p.dtype == DType::f8e4m3) return select_fp8_config(p);
  const bool staged = stages_bias(p);
  const ForwardFeatures features = cuda::features_of(p);
  const AttentionFeatures& f = features.attention;
  const Work work = work_of(f, staged);
  const bool converts = p.kv_dtype.has_value();
  if (p.v_mean && f.dropout) return refuse("does not support v_mean with dropout");  // add_means adds it undropped
  if (p.v_mean && (p.layout.v_mean[2] != 1 || p.dim_v % 16 != 0))
    return refuse("v_mean needs unit stride and dim_v a multiple of 16 (dim_v ", p.dim_v, ", stride ",
                  p.layout.v_mean[2], ")");
  const auto by_block = [](const std::optional<DescaleSpec>& d) { return d && d->blocks; };
  const bool block_scales = converts && (by_block(p.k_descale) || by_block(p.v_descale));
  const auto fits = [&](const TileConfig& t) {
    if (block_scales && kDescaleRows % t.block_n != 0) return false;  // a block of keys would have two factors
    if (converts &&
        (t.groups != 2 || t.block_n % 32 != 0 || t.q_registers || incoming_stages_of(features, t, staged) == 0))
      return false;
    return f.dim_qk <= t.dim_qk && f.dim_v <= t.dim_v && p.seq_q <= t.queries && reach_of(p) <= t.reach &&
           (f.bounded_right || !t.bounded) && work <= t.work && (register_pressure(features) & t.without) == 0 &&
           (!f.bool_mask || t.block_n % 32 == 0);  // the mask's words
  };
  const TileConfig& t = *std::ranges::find_if(kConfigs, fits);  // the last row takes all
  const int page_rows = p.paged() ? static_cast<int>(std::gcd(p.page_size, std::int64_t{t.block_n})) : 0;
  if (p.paged() && page_rows < 8) return refuse("page_size must be a multiple of 8 (got ", p.page_size, ")");
  const bool column_groups = f.dim_v <= t.column_groups, heavy = work == Work::any || f.own_lengths();
  // A producer that asks a page table, or whose warps convert, needs more than 24; 40 where no queries are packed.
  const bool wide = t.groups == 2 && (p.paged() || converts) && !p.varlen && work != Work::any;
  const Registers registers = wide ? kWide : heavy ? t.heavy : t.registers;
  return ForwardConfig{.groups = t.groups,
                       .v_groups = t.v_groups,
                       .block_n = t.block_n,
                       .stages = t.stages,
                       .q_stages = converts ? 1 : t.q_stages,
                       .cross_tile = t.cross_tile,
                       .ping_pong = t.ping_pong,
                       .q_registers = t.q_registers,
                       .column_groups = column_groups,
                       .early_softmax = t.early_softmax && !column_groups,
                       .bias_stages = bias_stages_of(f, t, staged),
                       .page_rows = page_rows,
                       .whole_pages = page_rows == p.page_size && page_rows > 0,
                       .incoming_stages = converts ? incoming_stages_of(features, t, staged) : 0,
                       .promote = 0,
                       .block_scales = block_scales,
                       .v_parts = 1,
                       .producer_registers = registers.producer,
                       .consumer_registers = registers.consumer};
}

}  // namespace onepass::sm90
