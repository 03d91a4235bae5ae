// Included with EMULATED_NAME, EMULATED_PROBLEM and EMULATED_CONFIG set.
#include "on_host/quantize_source.hpp"

#include "on_host/intrinsics.hpp"

#define EMULATED_PASTED(a, b) a##b
#define EMULATED_JOINED(a, b) EMULATED_PASTED(a, b)
#define onepass EMULATED_JOINED(emulated_quantize_, EMULATED_NAME)
#define quantize_rows EMULATED_JOINED(quantize_rows_, EMULATED_NAME)
#define quantize_tiles EMULATED_JOINED(quantize_tiles_, EMULATED_NAME)
#include "cuda/quantize/quantize_params.hpp"
namespace onepass {
constexpr QuantizeConfig quantize_config = EMULATED_CONFIG;
constexpr QuantizeConfigs quantize_jobs = {{quantize_config}, 1};
}  // namespace onepass
#ifdef EMULATED_TILES
#include "cuda/quantize/quantize.cuh"
#else
#include "cuda/quantize/rows.cuh"
#endif

namespace warps {

const QuantizeSource EMULATED_JOINED(quantize_, EMULATED_NAME) = {
    EMULATED_PROBLEM, &onepass::quantize_config, [](const void* params, unsigned blocks) {
      const auto& p = *static_cast<const onepass::QuantizeParams*>(params);
#ifdef EMULATED_TILES
      const onepass::QuantizeJobs jobs = {{p}, {static_cast<int>(blocks)}};
      const auto kernel = [&] { quantize_tiles(jobs); };
      const int bytes = onepass::quantize_jobs.shared_bytes();
#else
      const auto kernel = [&] { quantize_rows(p); };
      const int bytes = onepass::kQ.shared_bytes();
#endif
      gridDim.x = blocks;
      for (unsigned b = 0; b < blocks; ++b) {
        std::memset(smem, 0xff, sizeof smem);
        run_block(onepass::kThreads, kernel, b);
        for (unsigned i = bytes; i < sizeof smem; ++i)
          if (smem[i] != 0xff) fail("a kernel wrote beyond its shared memory");
      }
    }};

}  // namespace warps
