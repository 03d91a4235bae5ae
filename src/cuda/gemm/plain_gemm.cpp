#include "cuda/gemm/plain_gemm.hpp"

#include <cstdint>
#include <limits>

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/host/kernels.hpp"

namespace onepass::cuda {
namespace {

std::int64_t tiles_of(std::int64_t count) { return (count + kPlainGemmTile - 1) / kPlainGemmTile; }

class State final : public PlanState {
 public:
  State(const Request& request, const DeviceFacts& device, const PlainGemmConfig& config)
      : PlanState(request.problem), device_(device), config_(config) {}

  std::string describe() const override {
    return text(kPlainGemmTile, " x ", kPlainGemmTile, " tiles, scalar products in fp32");
  }
  void prepare() const override { load(nullptr); }
  void run(const Tensors& tensors, void*, Executor&, void* stream_) const override {
    const auto stream = static_cast<Stream>(stream_);
    const Kernel& kernel = load(stream);
    const std::int64_t blocks = plain_gemm_blocks(*problem);
    if (blocks == 0) return;
    const ContextScope scope(device_);
    PlainGemmParams parameters = plain_gemm_params(*problem, tensors);
    void* arguments[] = {&parameters};
    launch(kernel, static_cast<unsigned>(blocks), kPlainGemmTile * kPlainGemmTile, kPlainGemmShared, stream, arguments);
  }

 private:
  const Kernel& load(Stream stream) const {
    static KernelTable<PlainGemmConfig> kernels;
    return kernels.find(device_.ordinal, config_, kPlainGemmShared, stream,
                        [&] { return plain_gemm_program(config_, arch_of(device_)); });
  }

  const DeviceFacts& device_;
  const PlainGemmConfig config_;
};

}  // namespace

std::int64_t plain_gemm_blocks(const Problem& p) { return tiles_of(p.m) * tiles_of(p.n); }

bool select_plain_gemm(const Problem& p, PlainGemmConfig& config, std::string& why) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  if (p.m > kMax || p.n > kMax || plain_gemm_blocks(p) > kMax) {
    why = text("m x n must be at most ", kMax, " tiles of ", kPlainGemmTile, " x ", kPlainGemmTile, " (got m = ", p.m,
               ", n = ", p.n, ")");
    return false;
  }
  config = {.input = scalar_type_of(p.dtype), .output = scalar_type_of(p.out_dtype), .bias = p.column_bias};
  return true;
}

KernelProgram plain_gemm_program(const PlainGemmConfig& config, const std::string& arch) {
  return {"cuda/gemm/plain_gemm.cuh", "plain_gemm",
          config_line("cuda/gemm/plain_gemm_params.hpp", "onepass", "PlainGemmConfig plain_gemm_config", config), arch};
}

PlainGemmParams plain_gemm_params(const Problem& p, const Tensors& t) {
  const Layout& l = p.layout;
  PlainGemmParams a{};
  a.x = t.x.data, a.w = t.w.data, a.bias = t.column_bias.data, a.y = t.y.data;
  for (int i = 0; i < 2; ++i) a.x_stride[i] = l.x[i], a.w_stride[i] = l.w[i], a.y_stride[i] = l.y[i];
  a.bias_stride = l.column_bias[0];
  a.m = p.m, a.n = p.n, a.k = p.k;
  a.tiles_n = tiles_of(p.n);
  return a;
}

const Implementation& plain_gemm_implementation() {
  static const Implementation row{"cuda.plain_gemm",
                                  [](const Request& request) {
                                    std::string why;
                                    PlainGemmConfig config{};
                                    const DeviceFacts* const device = device_of(*request.problem, why);
                                    if (!device || !select_plain_gemm(*request.problem, config, why))
                                      return Decision::no(why);
                                    if (device->major < 8) return Decision::no(why_too_old(*device));
                                    return Decision{{}, std::make_shared<State>(request, *device, config)};
                                  },
                                  Op::flat_gemm, Dataflow::none};
  return row;
}

}  // namespace onepass::cuda
