#include "cuda/gemm/gemv.hpp"

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/gemm/matrices.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/host/kernel_state.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {
namespace {

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const GemvConfig& config)
      : KernelState(request, device), config_(config), decided_(gemv_params(*problem)) {
    idle_ = problem->n == 0;
    kernel_ = kernels_.add<gemv_program>(config, 0);
  }

  std::string describe() const override {
    return text("one row of w per warp, ", config_.rows, config_.rows == 1 ? " row of x" : " rows of x");
  }

 private:
  void launch(const Call& call) const override {
    GemvParams params = decided_;
    bind(params, call.tensors);
    call.launch(*kernel_, {ceil_div(decided_.n, kGemvWarps), 32 * kGemvWarps, device_.major >= 9}, params);
  }

  const GemvConfig config_;
  const GemvParams decided_;
  const PlannedKernel* kernel_;
};

}  // namespace

Selected<GemvConfig> select_gemv(const Problem& p) {
  if (p.m < 1 || p.m > kGemvMostRows) return refuse("m must be 1 to ", kGemvMostRows, " (got ", p.m, ")");
  if (p.n > kMaxPosition || p.k > kMaxPosition)
    return refuse("n and k must be at most ", kMaxPosition, " (got ", p.n, " and ", p.k, ")");
  if (!in_sixteens(p, Role::x) || !in_sixteens(p, Role::w))
    return refuse("rows of x and w must be contiguous, 16-byte aligned and a multiple of 16 bytes long");
  return GemvConfig{.input = scalar_type_of(p.dtype),
                    .output = scalar_type_of(p.out_dtype),
                    .rows = static_cast<int>(p.m),
                    .bias = p.column_bias};
}

KernelProgram gemv_program(const GemvConfig& config, const std::string& arch) {
  return {"cuda/gemm/gemv.cuh", "gemv",
          config_line("cuda/gemm/gemv_params.hpp", "onepass", "GemvConfig gemv_config", config), arch};
}

GemvParams gemv_params(const Problem& p) {
  const Layout& l = p.layout;
  GemvParams a{};
  a.x_stride = l.x[0], a.w_stride = l.w[0], a.bias_stride = l.column_bias[0];
  a.y_stride[0] = l.y[0], a.y_stride[1] = l.y[1];
  a.n = static_cast<int>(p.n), a.k = static_cast<int>(p.k);
  return a;
}

constinit const Implementation kGemvImplementation{"cuda.gemv", plan_row<State, select_gemv>, kLinear, Dataflow::gemv};

}  // namespace onepass::cuda
