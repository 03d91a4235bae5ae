#include "cuda/sm90/fp8/config.hpp"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/sm90/host.hpp"

namespace onepass::sm90 {
namespace {

// Keys between additions to fp32: products alone lose 0.4 % of V's mean over 512 keys, 1 % over 1024.
constexpr int kPromotedKeys = 512;

// The features that a row of the table has registers for. plain: a band alone, 16-bit results; light: softcap or fp32
// results, sinks besides; any: packed sequences, lengths of their own and masks too.
enum class Work { plain, light, any };

// Rows in order; the first that fits is taken. promotes: there are registers for a second sum of O.
struct TileConfig {
  int dim_qk, dim_v, queries, bounded_queries;  // up to these; from this many on, of bands bounded on the right too
  Work work;
  bool promotes;
  int groups, block_n, stages, incoming_stages, q_stages;
  bool cross_tile, ping_pong;
  int producer_registers, consumer_registers;
};
constexpr TileConfig kConfigs[] = {
    // dims queries work promotes | groups n stages incoming q | across tiles, turns | registers
    {64, 64, 0, 2048, Work::plain, false, 3, 128, 3, 2, 2, true, true, 32, 160},    //
    {64, 64, 0, 0, Work::any, true, 2, 128, 3, 2, 2, true, false, 56, 224},         // less beyond the diagonal at 1k
    {128, 128, 2048, 0, Work::plain, false, 3, 96, 3, 2, 2, true, false, 32, 160},  // a third less of K, V^T is read
    {128, 128, 0, 0, Work::light, false, 2, 128, 3, 2, 2, true, false, 40, 232},    // no tile quantisation at 1k
    {128, 128, 0, 0, Work::any, false, 2, 128, 3, 2, 2, true, false, 56, 224},      //
    {128, 128, 0, 0, Work::light, true, 2, 128, 3, 2, 2, false, false, 40, 232},    //
    {128, 128, 0, 0, Work::any, true, 2, 64, 3, 2, 2, false, false, 56, 224},       //
    {256, 128, 0, 0, Work::light, true, 2, 96, 2, 2, 1, false, false, 40, 232},     //
    {256, 128, 0, 0, Work::any, true, 2, 64, 2, 2, 1, false, false, 56, 224},       //
    {256, 256, 0, 0, Work::light, false, 2, 96, 2, 2, 1, false, false, 40, 232},    //
    {256, 256, 0, 0, Work::any, false, 2, 64, 2, 2, 1, false, false, 56, 224},      //
};

Work work_of(const ForwardFeatures& features) {
  const AttentionFeatures& f = features.attention;
  const bool wide = features.output == ScalarType::f32;
  if (f.own_lengths() || f.masks() || (wide && f.transforms())) return Work::any;
  return f.plain() && !wide && !features.sinks ? Work::plain : Work::light;
}

}  // namespace

std::string accumulation_of(const ForwardConfig& c) {
  const std::string parts = c.v_parts > 1 ? ", V in two launches" : "";
  return c.promote > 0 ? text("fp32 sums every ", c.promote * c.block_n, " keys", parts)
                       : "sums on the tensor cores only";
}

Selected<ForwardConfig> select_fp8_config(const Problem& p) {
  const ForwardFeatures features = cuda::features_of(p);
  const AttentionFeatures& f = features.attention;
  if (f.dropout || f.score_mod || f.mask_mod || f.alibi || f.bias != ScalarType::none || f.paged)
    return refuse("with fp8_e4m3 q, does not support ", f.dropout                    ? "dropout"
                                                        : f.score_mod || f.mask_mod  ? "a score_mod or mask_mod"
                                                        : f.alibi                    ? "ALiBi"
                                                        : f.bias != ScalarType::none ? "a bias"
                                                                                     : "paged K and V");
  if (p.dim_qk % 16 != 0 || p.dim_v % 16 != 0)
    return refuse("with fp8_e4m3 q, head dims must be multiples of 16 (got ", p.dim_qk, "/", p.dim_v, ")");
  if (p.v_mean && p.layout.v_mean[2] != 1)
    return refuse("the last dimension of v_mean must have stride 1 (got ", p.layout.v_mean[2], ")");
  const bool promotes = p.accumulation == Accumulation::exact && p.seq_k > kPromotedKeys;
  const auto by_block = [](const std::optional<DescaleSpec>& d) { return d && d->blocks; };
  const bool block_scales = by_block(p.k_descale) || by_block(p.v_descale);
  // Beyond 128 columns a second sum of O has no registers: two launches then, each with half of V's.
  const int v_parts = promotes && p.dim_v > 128 && p.dim_v % 32 == 0 ? 2 : 1;
  const auto fits = [&](const TileConfig& t) {  // a block of 96 keys would have two factors
    return p.dim_qk <= t.dim_qk && p.dim_v / v_parts <= t.dim_v && p.seq_q >= t.queries &&
           (!f.bounded_right || p.seq_q >= t.bounded_queries) &&
           (!p.v_mean || t.groups < 3 || t.dim_v <= 64) &&  // 16 to 48 bytes of spills where a mean is added
           work_of(features) <= t.work && (t.promotes || !promotes) && (!block_scales || kDescaleRows % t.block_n == 0);
  };
  const auto* const t = std::ranges::find_if(kConfigs, fits);
  if (t == std::end(kConfigs))
    return refuse("exact accumulation over more than ", kPromotedKeys,
                  " keys requires dim_v up to 128 or a multiple of 32 (got ", p.dim_v,
                  "); accumulation=fast supports it");
  return ForwardConfig{.groups = t->groups,
                       .v_groups = 1,
                       .block_n = t->block_n,
                       .stages = t->stages,
                       .q_stages = t->q_stages,
                       .cross_tile = t->cross_tile,
                       .ping_pong = t->ping_pong,
                       .q_registers = false,
                       .column_groups = false,
                       .early_softmax = t->cross_tile,
                       .bias_stages = 0,
                       .page_rows = 0,
                       .whole_pages = false,
                       .incoming_stages = t->incoming_stages,
                       .promote = promotes ? kPromotedKeys / t->block_n : 0,
                       .block_scales = block_scales,
                       .v_parts = v_parts,
                       .producer_registers = t->producer_registers,
                       .consumer_registers = t->consumer_registers};
}

}  // namespace onepass::sm90
