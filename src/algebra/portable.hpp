// Macros by which the header-free texts of the algebra compile for the host, for each SIMD target and inside CUDA
// kernels.
#ifndef ONEPASS_HD
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ONEPASS_HD __host__ __device__ __forceinline__
#else
#define ONEPASS_HD inline __attribute__((always_inline))
#endif
#endif

// Namespace of the text: onepass, unless src/cpu is including it under one SIMD target.
#ifndef ONEPASS_BEGIN
#define ONEPASS_BEGIN namespace onepass {
#define ONEPASS_END }
#endif
