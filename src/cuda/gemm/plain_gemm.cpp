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

PlainGemmParams plain_gemm_params(const Problem& p) {
  PlainGemmParams a{};
  set_strides(a, p);
  a.m = p.m, a.n = p.n, a.k = p.k;
  a.tiles_n = tiles_of(p.n);
  return a;
}

const Implementation& plain_gemm_implementation() {
  static const Implementation row{
      "cuda.plain_gemm",
      [](const Request& request) {
        return plan_on_device<State, PlainGemmConfig>(
            request, [](const DeviceFacts& device, const Problem& p, PlainGemmConfig& config, std::string& why) {
              if (select_plain_gemm(p, config, why) && device.major < 8) why = why_too_old(device);
              return why.empty();
            });
      },
      kFlatGemm, Dataflow::none};
  return row;
}

}  // namespace onepass::cuda
