// The table of configs, and what decides among them.
#include <algorithm>

#include "cuda/compile/wgmma_source.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/jvp/sm90/jvp.hpp"
#include "cuda/sm90/host.hpp"

namespace onepass::cuda::jvp::sm90 {
namespace {

// Registers of a producer's and of a consumer's thread. Producers of packed sequences look for their tiles' sequences.
struct Registers {
  int producer, consumer;
};
constexpr Registers kLean{24, 240}, kWide{40, 232};

// Rows in order; the first that computes the problem is taken.
struct TileConfig {
  int dim_qk, dim_v;  // up to these head dims
  bool dropout;       // its draws need registers: with 128 keys d64 falls from 361 to 285 TFLOP/s
  int v_groups, block_n, stages;
};
constexpr TileConfig kConfigs[] = {
    {64, 64, false, 1, 128, 2},  {64, 64, true, 1, 64, 2},   {128, 128, false, 1, 64, 2}, {128, 128, true, 1, 32, 2},
    {192, 128, false, 1, 64, 1}, {192, 128, true, 1, 32, 2}, {256, 256, false, 2, 64, 1}, {256, 256, true, 2, 32, 2},
};

}  // namespace

Selected<Config> select_config(const Problem& p) {
  constexpr int kWidest = 256;
  if (p.dtype == DType::f32) return refuse("requires fp16 or bf16 (q is fp32)");
  if (p.dim_qk > kWidest || p.dim_v > kWidest)
    return refuse("head dims must be at most ", kWidest, " (got ", p.dim_qk, "/", p.dim_v, ")");
  for (const Role role : {Role::q, Role::k, Role::v, Role::tq, Role::tk, Role::tv, Role::out, Role::tout}) {
    if ((role == Role::out || role == Role::tout) && p.out_dtype == DType::f32) continue;
    if (std::string sentence = onepass::sm90::why_no_tma(p, role); !sentence.empty()) return refuse(sentence);
  }
  const AttentionFeatures f = features_of(p).forward.attention;
  const auto fits = [&](const TileConfig& t) {
    return f.dim_qk <= t.dim_qk && f.dim_v <= t.dim_v && (t.dropout || !f.dropout);
  };
  const TileConfig& t = *std::ranges::find_if(kConfigs, fits);  // the last row takes all
  const Registers registers = f.own_lengths() ? kWide : kLean;
  const Config c{.groups = 2,
                 .v_groups = t.v_groups,
                 .block_n = t.block_n,
                 .stages = t.stages,
                 .producer_registers = registers.producer,
                 .consumer_registers = registers.consumer};
  if (std::string sentence = why_elsewhere(p, tile_bound(p, tile_shape_of(c))); !sentence.empty())
    return refuse(sentence);
  return c;
}

KernelProgram program_of(const JvpFeatures& f, const Config& c, const std::string& mods) {
  const AttentionFeatures& a = f.forward.attention;
  return {
      "cuda/jvp/sm90/jvp.cuh",
      "attention_jvp",
      text(features_source(f), config_line("cuda/jvp/sm90/config.hpp", "onepass::cuda::jvp::sm90", "Config config", c)),
      "sm_90a",
      mods,
      wgmma_source({c.block_n, out_columns(a.dim_v, c)}, onepass::sm90::operand_of(a.input))};
}

}  // namespace onepass::cuda::jvp::sm90
