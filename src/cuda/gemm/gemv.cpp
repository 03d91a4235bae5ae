#include "cuda/gemm/gemv.hpp"

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/gemm/sixteens.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/host/kernels.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {
namespace {

class State final : public PlanState {
 public:
  State(const Request& request, const DeviceFacts& device, const GemvConfig& config)
      : PlanState(request.problem), device_(device), config_(config) {}

  std::string describe() const override {
    return text("one row of w per warp, ", config_.rows, config_.rows == 1 ? " row of x" : " rows of x");
  }
  void prepare() const override { load(nullptr); }
  void run(const Tensors& tensors, void*, Executor&, void* stream_) const override {
    const auto stream = static_cast<Stream>(stream_);
    const Kernel& kernel = load(stream);
    if (problem->n == 0) return;
    const ContextScope scope(device_);
    GemvParams parameters = gemv_params(*problem, tensors);
    void* arguments[] = {&parameters};
    launch(kernel, static_cast<unsigned>((problem->n + kGemvWarps - 1) / kGemvWarps), 32 * kGemvWarps, 0, stream,
           arguments, device_.major >= 9);
  }

 private:
  const Kernel& load(Stream stream) const {
    static KernelTable<GemvConfig> kernels;
    return kernels.find(device_.ordinal, config_, 0, stream, [&] { return gemv_program(config_, arch_of(device_)); });
  }

  const DeviceFacts& device_;
  const GemvConfig config_;
};

}  // namespace

bool select_gemv(const Problem& p, GemvConfig& config, std::string& why) {
  if (p.m < 1 || p.m > kGemvMostRows) {
    why = text("m must be 1 to ", kGemvMostRows, " (got ", p.m, ")");
    return false;
  }
  if (p.n > kMaxPosition || p.k > kMaxPosition) {
    why = text("n and k must be at most ", kMaxPosition, " (got ", p.n, " and ", p.k, ")");
    return false;
  }
  if (!in_sixteens(p, Role::x) || !in_sixteens(p, Role::w)) {
    why = "rows of x and w must be contiguous, 16-byte aligned and a multiple of 16 bytes long";
    return false;
  }
  config = {.input = scalar_type_of(p.dtype),
            .output = scalar_type_of(p.out_dtype),
            .rows = static_cast<int>(p.m),
            .bias = p.column_bias};
  return true;
}

KernelProgram gemv_program(const GemvConfig& config, const std::string& arch) {
  return {"cuda/gemm/gemv.cuh", "gemv",
          config_line("cuda/gemm/gemv_params.hpp", "onepass", "GemvConfig gemv_config", config), arch};
}

GemvParams gemv_params(const Problem& p, const Tensors& t) {
  const Layout& l = p.layout;
  GemvParams a{};
  a.x = t.x.data, a.w = t.w.data, a.bias = t.column_bias.data, a.y = t.y.data;
  a.x_stride = l.x[0], a.w_stride = l.w[0], a.bias_stride = l.column_bias[0];
  a.y_stride[0] = l.y[0], a.y_stride[1] = l.y[1];
  a.n = static_cast<int>(p.n), a.k = static_cast<int>(p.k);
  return a;
}

const Implementation& gemv_implementation() {
  static const Implementation row{"cuda.gemv",
                                  [](const Request& request) {
                                    std::string why;
                                    GemvConfig config;
                                    const DeviceFacts* const device = device_of(*request.problem, why);
                                    if (!device || !select_gemv(*request.problem, config, why))
                                      return Decision::no(why);
                                    return Decision{{}, std::make_shared<State>(request, *device, config)};
                                  },
                                  Op::linear, Dataflow::gemv};
  return row;
}

}  // namespace onepass::cuda
