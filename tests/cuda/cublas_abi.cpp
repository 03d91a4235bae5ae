// Compiled where cublasLt.h is installed: the library's own declarations must be its.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include <cstddef>
#include <type_traits>

#include "cuda/gemm/cublas_api.hpp"

namespace onepass::cuda {

static_assert(sizeof(LtAlgo) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(LtHeuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(LtHeuristic, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(LtHeuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));

#define ONEPASS_SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
ONEPASS_SAME(0, CUBLAS_STATUS_SUCCESS);
ONEPASS_SAME(kLtTransposeA, CUBLASLT_MATMUL_DESC_TRANSA);
ONEPASS_SAME(kLtEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
ONEPASS_SAME(kLtBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
ONEPASS_SAME(kLtEpilogueBias, CUBLASLT_EPILOGUE_BIAS);
ONEPASS_SAME(kLtMaxWorkspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
ONEPASS_SAME(kLtAlignmentOfA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
ONEPASS_SAME(kLtAlignmentOfA + 1, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
ONEPASS_SAME(kLtAlignmentOfA + 2, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
ONEPASS_SAME(kLtAlignmentOfA + 3, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
ONEPASS_SAME(kLtF32, CUDA_R_32F);
ONEPASS_SAME(kLtF16, CUDA_R_16F);
ONEPASS_SAME(kLtBf16, CUDA_R_16BF);
ONEPASS_SAME(kLtComputeF32, CUBLAS_COMPUTE_32F);
ONEPASS_SAME(kLtTranspose, CUBLAS_OP_T);

// The same number of parameters in each call, each of the same size.
template <class A, class B>
struct SameShape : std::false_type {};
template <class... A, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct SameShape<Result (*)(A...), Result (*)(B...)> : std::bool_constant<((sizeof(A) == sizeof(B)) && ...)> {};
template <class R, class... A>
Result (*as_result(R (*)(A...)))(A...);
#define ONEPASS_CALL(symbol, member, parameters) \
  static_assert(SameShape<decltype(std::declval<Cublas>().member), decltype(as_result(&::symbol))>::value, #symbol);
ONEPASS_CUBLAS_API(ONEPASS_CALL)
static_assert(std::is_same_v<decltype(Cublas::version), decltype(&::cublasLtGetVersion)>);

}  // namespace onepass::cuda
#endif
