#include "cuda/gemm/flat_gemm.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/gemm/matrices.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/host/kernel_state.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {
namespace {

constexpr int kMaxRows = 64, kMaxStages = 6, kOfH200 = 132;  // of an H200, which plans are made for

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const FlatGemmPlan& plan)
      : KernelState(request, device), plan_(plan), decided_(flat_gemm_params(*problem, plan)) {
    workspace_bytes = plan.workspace_bytes;
    idle_ = problem->m == 0 || problem->n == 0;
    kernel_ = kernels_.add<flat_gemm_program>(plan.config, plan.config.shared_bytes());
  }

  std::string describe() const override {
    const int columns = plan_.each + (plan_.more > 0 ? 1 : 0);
    return text(plan_.tiles_n, " tiles of up to ", columns, columns == 1 ? " column" : " columns", " (of ",
                plan_.config.tile_n(), ") x ", 8 * plan_.config.tiles, " rows, k in ", plan_.splits, " split",
                plan_.splits > 1 ? "s" : "", " of ", plan_.split_steps * plan_.config.step(), ", ", plan_.blocks,
                " CTAs with ", plan_.config.stages, " stages", plan_.config.vectors ? "" : ", scalar loads");
  }

 private:
  void launch(const Call& call) const override {
    FlatGemmParams params = decided_;
    bind(params, call.tensors);
    params.partials = static_cast<float*>(call.workspace);
    if (plan_.splits > 1) params.counters = counters(call);
    call.launch(*kernel_, {plan_.blocks, kGemmThreads, device_.major >= 9}, params);
  }
  unsigned* counters(const Call& call) const {
    if (unsigned* const known = workspace_counters(device_, call.workspace)) return known;
    void* const own = static_cast<char*>(call.workspace) + plan_.partial_bytes;
    call.zero(own, kWorkspaceCounters * sizeof(unsigned));
    return static_cast<unsigned*>(own);
  }

  const FlatGemmPlan plan_;
  const FlatGemmParams decided_;
  const PlannedKernel* kernel_;
};

Selected<FlatGemmPlan> plan_on(const DeviceFacts& device, const Problem& p) {
  return select_flat_gemm(p, device.shared_bytes, device.multiprocessors);
}

}  // namespace

FlatGemmPlan cut_flat_gemm(const Problem& p, const FlatGemmConfig& config, int splits, int blocks) {
  const auto up = [](std::int64_t a, std::int64_t b) { return static_cast<int>(ceil_div(a, b)); };
  FlatGemmPlan plan{};
  plan.config = config;
  plan.tiles_n = up(p.n, config.tile_n());
  const int steps = std::max(1, up(p.k, config.step()));
  plan.split_steps = up(steps, splits);
  plan.splits = up(steps, plan.split_steps);
  // Whole rounds of tiles. All tiles have the same number of rows, or one less, on which sums do not depend.
  if (plan.splits == 1)
    plan.tiles_n = static_cast<int>(std::min<std::int64_t>(p.n, std::int64_t{up(plan.tiles_n, blocks)} * blocks));
  plan.each = plan.tiles_n > 0 ? static_cast<int>(p.n / plan.tiles_n) : 0;
  plan.more = plan.tiles_n > 0 ? static_cast<int>(p.n % plan.tiles_n) : 0;
  plan.blocks = std::min(blocks, plan.tiles_n * plan.splits);
  plan.group = std::max(1, up(plan.tiles_n, kWorkspaceCounters));
  if (plan.splits > 1) {
    plan.partial_bytes = sizeof(float) * static_cast<std::size_t>(plan.splits) *
                         static_cast<std::size_t>(plan.tiles_n) * static_cast<std::size_t>(p.m * config.tile_n());
    plan.workspace_bytes = plan.partial_bytes + kWorkspaceCounters * sizeof(unsigned);
  }
  return plan;
}

namespace {

// Microseconds of a plan on an H200, whatever it runs on: the order of sums depends on the problem alone. A launch, its
// first bytes and its last step take 1.5 and more with wider tiles. A block reads w at 31.8 KB a microsecond, and w
// with x, which comes from L2, at 55, or 50 with a ring of two stages. A step takes at least as long as its bytes go
// through shared memory: w and x in, w out once, x for each warp's rows of w. Within 5 % of most that was measured
// (docs/notes/flat-gemm.md). Splits take 3.0 for their merge.
double microseconds(const Problem& p, const FlatGemmPlan& plan) {
  const FlatGemmConfig& c = plan.config;
  const double step = c.step(), steps = std::ceil(static_cast<double>(p.k) / step);
  const double rows = static_cast<double>(p.n) / std::max(1, plan.tiles_n), x_rows = 8.0 * c.tiles;
  const double of_w = 2e-3 * rows * step, of_x = 2e-3 * x_rows * step, of_block = 2e-3 * 16 * step;  // KB
  const double full = std::min(1.0, static_cast<double>(p.k) / (steps * step));                      // of the steps
  const double reading = full * std::max((of_w + 0.16 * of_x) / 31.8, (of_w + of_x) / (c.stages > 2 ? 55 : 50));
  const double out = std::ceil(rows / 16) * of_block + std::ceil(rows / (16 * c.blocks)) * of_x;
  const double sharing = 0.23 + (of_w + of_x + out) / 170;
  const double tiles = std::ceil(static_cast<double>(plan.tiles_n) * plan.splits / kOfH200);
  return 1.4 + 0.008 * c.tile_n() + tiles * std::min<double>(plan.split_steps, steps) * std::max(reading, sharing) +
         (plan.splits > 1 ? 3.0 : 0.0);
}

}  // namespace

Selected<FlatGemmPlan> select_flat_gemm(const Problem& p, int shared_bytes, int multiprocessors) {
  if (p.dtype == DType::f32) return refuse("requires fp16 or bf16 (got fp32)");
  if (p.m > kMaxRows) return refuse("m must be at most ", kMaxRows, " (got ", p.m, ")");
  if (p.n > kMaxPosition || p.k > kMaxPosition)
    return refuse("n and k must be at most ", kMaxPosition, " (got ", p.n, " and ", p.k, ")");
  FlatGemmConfig config{.input = scalar_type_of(p.dtype),
                        .output = scalar_type_of(p.out_dtype),
                        .tiles = p.m <= 8    ? 1
                                 : p.m <= 16 ? 2
                                 : p.m <= 32 ? 4
                                             : 8,
                        .warps_n = 1,
                        .blocks = 1,
                        .stages = 2,
                        .vectors = in_sixteens(p, Role::x) && in_sixteens(p, Role::w),
                        .bias = p.column_bias};
  FlatGemmPlan plan{};
  double best = std::numeric_limits<double>::max();
  for (const auto& [warps_n, row_blocks] : {std::pair{1, 1}, {2, 1}, {4, 1}, {4, 2}, {8, 1}}) {
    // The narrowest that fits was the fastest for up to 8 rows, or within 1 %, of all shapes tried.
    if (config.tiles == 1 && best < std::numeric_limits<double>::max()) break;
    config.warps_n = warps_n, config.blocks = row_blocks;
    config.stages = 0;
    config.stages = std::min(kMaxStages, (shared_bytes - config.shared_bytes()) / config.stage_bytes());
    if (config.stages < 2) continue;
    for (const int splits : {1, 2, 3, 4, 6, 8}) {
      // The cost is modelled for an H200, so that the same kernel is chosen everywhere; tiles follow the device.
      const FlatGemmPlan there = cut_flat_gemm(p, config, splits, kOfH200);
      // Their sums go through memory, which only narrow tiles in less than half a round are worth.
      if (there.splits > 1 && (config.tile_n() > 32 || there.tiles_n >= 66)) continue;
      if (const double cost = microseconds(p, there); cost < best)
        best = cost, plan = cut_flat_gemm(p, config, splits, multiprocessors);
    }
  }
  if (best == std::numeric_limits<double>::max())
    return refuse("no tile fits into ", shared_bytes, " bytes of shared memory");
  return plan;
}

KernelProgram flat_gemm_program(const FlatGemmConfig& config, const std::string& arch) {
  return {"cuda/gemm/flat_gemm.cuh", "flat_gemm",
          config_line("cuda/gemm/flat_gemm_params.hpp", "onepass", "FlatGemmConfig gemm_config", config), arch};
}

FlatGemmParams flat_gemm_params(const Problem& p, const FlatGemmPlan& plan) {
  FlatGemmParams a{};
  set_strides(a, p);
  a.m = static_cast<int>(p.m), a.n = static_cast<int>(p.n), a.k = static_cast<int>(p.k);
  a.splits = plan.splits, a.split_steps = plan.split_steps;
  a.tiles_n = plan.tiles_n, a.group = plan.group, a.each = plan.each, a.more = plan.more;
  return a;
}

constinit const Implementation kFlatGemmImplementation{"cuda.flat_gemm", plan_row<State, plan_on>, kFlatGemm};

}  // namespace onepass::cuda
