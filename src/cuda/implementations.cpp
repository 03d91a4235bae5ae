#include "cuda/implementations.hpp"

#include "cuda/append/host.hpp"
#include "cuda/decode/decode.hpp"
#include "cuda/gemm/cublas.hpp"
#include "cuda/gemm/flat_gemm.hpp"
#include "cuda/gemm/gemv.hpp"
#include "cuda/gemm/plain_gemm.hpp"
#include "cuda/merge/merge.hpp"
#include "cuda/mixed/mixed.hpp"
#include "cuda/mla/mla.hpp"
#include "cuda/plain/plain.hpp"
#include "cuda/quantize/quantize.hpp"
#include "cuda/sm80/backward/backward.hpp"
#include "cuda/sm80/forward/forward.hpp"
#include "cuda/sm90/backward/backward.hpp"
#include "cuda/sm90/forward/forward.hpp"
#include "cuda/softmax/softmax.hpp"

namespace onepass::cuda {

std::vector<const Implementation*> implementations() {
  return {&decode::mla_implementation(),    &decode::implementation(),
          &mixed_implementation(),          &sm90::forward_implementation(),
          &sm80::forward_implementation(),  &sm90::backward_implementation(),
          &sm80::backward_implementation(), &merge_implementation(),
          &softmax_implementation(),        &softmax_backward_implementation(),
          &quantize_implementation(),       &gemv_implementation(),
          &flat_gemm_implementation(),      &cublas_implementation(),
          &plain_gemm_implementation(),     &plain_implementation(),
          &append_implementation()};
}

}  // namespace onepass::cuda
