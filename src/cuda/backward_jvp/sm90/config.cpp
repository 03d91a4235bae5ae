// The table of configs, and what decides among them.
#include <algorithm>

#include "base/text.hpp"
#include "cuda/attention/backward/host.hpp"
#include "cuda/backward_jvp/sm90/backward_jvp.hpp"
#include "cuda/compile/wgmma_source.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/sm90/host.hpp"

namespace onepass::cuda::backward_jvp::sm90 {
namespace {

// Rows in order; the first that computes the problem is taken. Stages are the first of kStages that fit.
struct TileConfig {
  int dim;  // up to these head dims
  int by_rows, by_keys;
};
constexpr TileConfig kConfigs[] = {{64, 64, 64}, {128, 64, 32}};
constexpr int kWidest = 128;
constexpr Stages kStages[] = {{4, 4}, {3, 3}, {2, 2}, {2, 1}, {1, 1}};

}  // namespace

Selected<Plan> select_plan(const Problem& p) {
  if (p.dtype == DType::f32) return refuse("requires fp16 or bf16 (q is fp32)");
  const Selected<backward_plain::Plan> plain = select_plain(p);
  if (!plain) return refuse(plain.refusal());
  const int dim = static_cast<int>(std::max(p.dim_qk, p.dim_v));
  if (dim > kWidest) return refuse("head dims must be at most ", kWidest, " (got ", p.dim_qk, "/", p.dim_v, ")");
  for (const Role role : {Role::q, Role::k, Role::v, Role::dout, Role::tq, Role::tk, Role::tv, Role::tdout}) {
    if (role == Role::tdout && !p.tdout) continue;
    if (std::string sentence = onepass::sm90::why_no_tma(p, role); !sentence.empty()) return refuse(sentence);
  }
  Plan plan{.plain = *plain, .config = {}};
  Config& c = plan.config;
  set_parts(plan.plain, 1);
  const TileConfig& t = *std::ranges::find_if(kConfigs, [&](const TileConfig& of) { return dim <= of.dim; });
  c.by_rows = t.by_rows, c.by_keys = t.by_keys;
  c.producer_registers = 24, c.consumer_registers = 240;
  for (const bool keys : {false, true}) {
    Stages& stages = keys ? c.key_stages : c.row_stages;
    for (const Stages& more : kStages) {
      stages = more;
      if (shared_bytes_of(keys, plan) <= onepass::sm90::kSharedBytes) break;
    }
  }
  return plan;
}

KernelProgram program_of(bool keys, const Plan& plan, const std::string&, const std::string& mods) {
  const AttentionFeatures& f = plan.plain.features.backward.forward.attention;
  KernelProgram program = tiles_program(keys, plan.plain, "cuda/backward_jvp/sm90", "sm_90a", mods);
  program.config += config_line("cuda/backward_jvp/sm90/config.hpp", "onepass::cuda::backward_jvp::sm90",
                                "Config config", plan.config);
  program.generated = wgmma_source({plan.config.streamed(keys), round_up(f.dim_qk, 16), round_up(f.dim_v, 16)},
                                   onepass::sm90::operand_of(f.input));
  return program;
}

int shared_bytes_of(bool keys, const Plan& plan) { return layout_of(plan.plain.features, plan.config, keys).total; }

}  // namespace onepass::cuda::backward_jvp::sm90
