#include "cuda/implementations.hpp"

#include "cuda/append/host.hpp"
#include "cuda/backward_jvp/backward_jvp.hpp"
#include "cuda/backward_jvp/sm90/backward_jvp.hpp"
#include "cuda/backward_plain/backward_plain.hpp"
#include "cuda/decode/decode.hpp"
#include "cuda/gemm/cublas.hpp"
#include "cuda/gemm/flat_gemm.hpp"
#include "cuda/gemm/gemv.hpp"
#include "cuda/gemm/plain_gemm.hpp"
#include "cuda/jvp/jvp.hpp"
#include "cuda/jvp/sm90/jvp.hpp"
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
  return {&decode::kMlaImplementation,
          &decode::kImplementation,
          &kMixedImplementation,
          &sm90::kForwardImplementation,
          &sm80::kForwardImplementation,
          &decode::kFp8Implementation,
          &sm90::kBackwardImplementation,
          &sm80::kBackwardImplementation,
          &jvp::sm90::kImplementation,
          &jvp::kImplementation,
          &jvp::kPlainImplementation,
          &backward_plain::kFirstImplementation,
          &backward_jvp::sm90::kImplementation,
          &backward_jvp::kImplementation,
          &backward_plain::kSecondImplementation,
          &kMergeImplementation,
          &kSoftmaxImplementation,
          &kSoftmaxBackwardImplementation,
          &kQuantizeImplementation,
          &kGemvImplementation,
          &kFlatGemmImplementation,
          &kCublasImplementation,
          &kPlainGemmImplementation,
          &kPlainImplementation,
          &kAppendImplementation};
}

}  // namespace onepass::cuda
