#include "cuda/gemm/plain_gemm.hpp"

#include <cstdint>
#include <limits>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/gemm/matrices.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/host/kernel_state.hpp"

namespace onepass::cuda {
namespace {

std::int64_t tiles_of(std::int64_t count) { return ceil_div(count, kPlainGemmTile); }

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const PlainGemmConfig& config)
      : KernelState(request, device), blocks_(plain_gemm_blocks(*problem)), decided_(plain_gemm_params(*problem)) {
    idle_ = blocks_ == 0;
    kernel_ = kernels_.add<plain_gemm_program>(config, kPlainGemmShared);
  }

  std::string describe() const override {
    return text(kPlainGemmTile, " x ", kPlainGemmTile, " tiles, scalar products in fp32");
  }

 private:
  void launch(const Call& call) const override {
    PlainGemmParams params = decided_;
    bind(params, call.tensors);
    call.launch(*kernel_, {blocks_, kPlainGemmTile * kPlainGemmTile}, params);
  }

  const std::int64_t blocks_;
  const PlainGemmParams decided_;
  const PlannedKernel* kernel_;
};

Selected<PlainGemmConfig> config_on(const DeviceFacts& device, const Problem& p) {
  auto config = select_plain_gemm(p);
  if (config && device.major < 8) return refuse(why_too_old(device));
  return config;
}

}  // namespace

std::int64_t plain_gemm_blocks(const Problem& p) { return tiles_of(p.m) * tiles_of(p.n); }

Selected<PlainGemmConfig> select_plain_gemm(const Problem& p) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  if (p.m > kMax || p.n > kMax || plain_gemm_blocks(p) > kMax)
    return refuse("m x n must be at most ", kMax, " tiles of ", kPlainGemmTile, " x ", kPlainGemmTile,
                  " (got m = ", p.m, ", n = ", p.n, ")");
  return PlainGemmConfig{
      .input = scalar_type_of(p.dtype), .output = scalar_type_of(p.out_dtype), .bias = p.column_bias};
}

KernelProgram plain_gemm_program(const PlainGemmConfig& config, const std::string& arch) {
  return {"cuda/gemm/plain_gemm.cuh", "plain_gemm",
          config_line("cuda/gemm/plain_gemm_params.hpp", "onepass", "PlainGemmConfig plain_gemm_config", config), arch};
}

PlainGemmParams plain_gemm_params(const Problem& p) {
  PlainGemmParams a{};
  set_strides(a, p);
  a.m = p.m, a.n = p.n, a.k = p.k;
  a.tiles_n = tiles_of(p.n);
  return a;
}

constinit const Implementation kPlainGemmImplementation{"cuda.plain_gemm", plan_row<State, config_on>, kFlatGemm,
                                                        Dataflow::none};

}  // namespace onepass::cuda
