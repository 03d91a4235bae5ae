// The part of cuBLASLt that the library uses, opened at run time. Types and values are those of its stable C ABI
// (cublasLt.h of CUDA 12 and 13); tests/cuda/cublas_abi.cpp compares them with the header where a toolkit is installed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/driver/api.hpp"

namespace onepass::cuda {

using LtHandle = struct LtHandleOf*;
using LtDesc = struct LtDescOf*;
using LtLayout = struct LtLayoutOf*;
using LtPreference = struct LtPreferenceOf*;

struct LtAlgo {  // cublasLtMatmulAlgo_t
  std::uint64_t opaque[8];
};
struct LtHeuristic {  // cublasLtMatmulHeuristicResult_t
  LtAlgo algo;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

inline constexpr int kLtTransposeA = 3, kLtEpilogue = 7, kLtBiasPointer = 8;  // attributes of a product
inline constexpr int kLtEpilogueBias = 4, kLtMaxWorkspace = 1;                // a value; an attribute of a preference
inline constexpr int kLtAlignmentOfA = 5;                                     // then of B, C and D
inline constexpr int kLtF32 = 0, kLtF16 = 2, kLtBf16 = 14;                    // cudaDataType
inline constexpr int kLtComputeF32 = 68, kLtTranspose = 1;                    // CUBLAS_COMPUTE_32F, CUBLAS_OP_T

// name in the library, member name, parameters
#define ONEPASS_CUBLAS_API(X)                                                                                     \
  X(cublasLtCreate, create, (LtHandle * handle))                                                                  \
  X(cublasLtMatmulDescCreate, desc_create, (LtDesc * desc, int compute, int scale))                               \
  X(cublasLtMatmulDescSetAttribute, desc_set, (LtDesc desc, int attribute, const void* value, std::size_t bytes)) \
  X(cublasLtMatmulDescDestroy, desc_destroy, (LtDesc desc))                                                       \
  X(cublasLtMatrixLayoutCreate, layout_create,                                                                    \
    (LtLayout * layout, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t stride))                \
  X(cublasLtMatrixLayoutDestroy, layout_destroy, (LtLayout layout))                                               \
  X(cublasLtMatmulPreferenceCreate, preference_create, (LtPreference * preference))                               \
  X(cublasLtMatmulPreferenceSetAttribute, preference_set,                                                         \
    (LtPreference preference, int attribute, const void* value, std::size_t bytes))                               \
  X(cublasLtMatmulPreferenceDestroy, preference_destroy, (LtPreference preference))                               \
  X(cublasLtMatmulAlgoGetHeuristic, heuristic,                                                                    \
    (LtHandle handle, LtDesc desc, LtLayout a, LtLayout b, LtLayout c, LtLayout d, LtPreference preference,       \
     int wanted, LtHeuristic* found, int* count))                                                                 \
  X(cublasLtMatmul, matmul,                                                                                       \
    (LtHandle handle, LtDesc desc, const void* alpha, const void* a, LtLayout a_layout, const void* b,            \
     LtLayout b_layout, const void* beta, const void* c, LtLayout c_layout, void* d, LtLayout d_layout,           \
     const LtAlgo* algo, void* workspace, std::size_t workspace_bytes, Stream stream))

struct Cublas {
  std::size_t (*version)() = nullptr;  // 130100 for 13.1
#define ONEPASS_MEMBER(symbol, member, parameters) Result(*member) parameters = nullptr;
  ONEPASS_CUBLAS_API(ONEPASS_MEMBER)
#undef ONEPASS_MEMBER
};

// nullptr with a sentence if it is not on this machine or lacks something. $ONEPASS_CUBLASLT names the one to open,
// else libcublasLt.so.13 or .12, as the process has it or the loader finds it, or the toolkit's. Thread-safe.
const Cublas* cublas(std::string& why);

}  // namespace onepass::cuda
