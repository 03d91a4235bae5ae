// Tables of configs, and what decides among them.
#include <algorithm>

#include "base/text.hpp"
#include "cuda/attention/backward/host.hpp"
#include "cuda/backward_jvp/backward_jvp.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/sm80/host.hpp"

namespace onepass::cuda::backward_jvp {
namespace {

// Rows in order; the first that computes the problem and fits the shared memory is taken.
struct TileConfig {
  int dim;  // up to these head dims
  sm80::Extras extras;
  int warps, share, by_rows, by_keys, blocks;
};
constexpr TileConfig kConfigs16[] = {
    // dim extras | warps share | keys, rows of a streamed block | blocks
    {64, sm80::kBands, 8, 1, 32, 16, 2},  {64, sm80::kAll, 8, 1, 16, 16, 1},  {128, sm80::kBands, 8, 1, 64, 32, 1},
    {128, sm80::kBands, 8, 1, 32, 32, 1}, {128, sm80::kAll, 8, 1, 16, 16, 1}, {128, sm80::kAll, 4, 1, 16, 16, 1},
    {256, sm80::kAll, 8, 2, 16, 16, 1},   {256, sm80::kAll, 4, 2, 16, 16, 1},
};
constexpr TileConfig kConfigs32[] = {
    {64, sm80::kAll, 8, 1, 16, 16, 1},
    {64, sm80::kAll, 4, 1, 16, 16, 1},
    {128, sm80::kAll, 8, 2, 16, 16, 1},
    {128, sm80::kAll, 4, 2, 16, 16, 1},
};

}  // namespace

Selected<Plan> select_plan(const Problem& p, int shared_bytes) {
  const Selected<backward_plain::Plan> plain = select_plain(p);
  if (!plain) return refuse(plain.refusal());
  Plan plan{.plain = *plain, .config = {}};
  plan.config.copy_bytes = 16;
  for (const Role role : {Role::q, Role::k, Role::v, Role::dout, Role::tq, Role::tk, Role::tv, Role::tdout})
    plan.config.copy_bytes = std::min(plan.config.copy_bytes, row_alignment(p, role));
  const sm80::Extras extras = sm80::extras_of(plan.plain.features.backward.forward.attention, plan.config.copy_bytes);
  const auto fits = [&](const TileConfig& t) {
    SecondConfig& c = plan.config;
    c.warps = t.warps, c.share = t.share, c.by_rows = t.by_rows, c.by_keys = t.by_keys, c.blocks = t.blocks;
    return p.dim_qk <= t.dim && p.dim_v <= t.dim && extras <= t.extras &&
           t.blocks * (std::max(shared_bytes_of(false, plan), shared_bytes_of(true, plan)) + sm80::kReserved) <=
               shared_bytes + sm80::kReserved;
  };
  if (p.dtype == DType::f32 ? std::ranges::none_of(kConfigs32, fits) : std::ranges::none_of(kConfigs16, fits))
    return refuse("no configuration for head dims ", p.dim_qk, "/", p.dim_v, " fits ", shared_bytes,
                  " bytes of shared memory");
  set_parts(plan.plain, plan.config.share);
  return plan;
}

KernelProgram tiles_program(bool keys, const backward_plain::Plan& plan, const std::string& folder,
                            const std::string& arch, const std::string& mods) {
  KernelProgram program = backward_plain::program_of(backward_plain::Part::rows, plan, arch, mods);
  program.file = text(folder, keys ? "/keys.cuh" : "/rows.cuh");
  program.entry = keys ? "attention_backward_jvp_keys" : "attention_backward_jvp_rows";
  return program;
}

KernelProgram program_of(bool keys, const Plan& plan, const std::string& arch, const std::string& mods) {
  KernelProgram program = tiles_program(keys, plan.plain, "cuda/backward_jvp", arch, mods);
  program.config += text(config_line("cuda/backward_jvp/config.hpp", "onepass::mma",
                                     "cuda::backward_jvp::SecondConfig config", plan.config),
                         sm80::tangents_of(plan.plain.features.backward.forward.attention.input));
  return program;
}

int shared_bytes_of(bool keys, const Plan& plan) { return layout_of(plan.plain.features, plan.config, keys).total; }

}  // namespace onepass::cuda::backward_jvp
