// Compiled where cuda.h and nvrtc.h are installed: the library's own declarations must be theirs.
#include <cuda.h>
#include <nvrtc.h>

#include <type_traits>

#include "cuda/driver/api.hpp"

namespace onepass::cuda {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));
static_assert(sizeof(LaunchAttribute) == sizeof(CUlaunchAttribute) &&
              offsetof(LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(LaunchConfig, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(LaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));
static_assert(sizeof(DevicePtr) == sizeof(CUdeviceptr) && sizeof(Result) == sizeof(CUresult) &&
              sizeof(Result) == sizeof(nvrtcResult));
static_assert(sizeof(Program) == sizeof(nvrtcProgram) && sizeof(Stream) == sizeof(CUstream) &&
              sizeof(Module) == sizeof(CUmodule));

#define ONEPASS_SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
ONEPASS_SAME(kMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
ONEPASS_SAME(kComputeMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
ONEPASS_SAME(kComputeMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
ONEPASS_SAME(kL2Bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
ONEPASS_SAME(kSharedBytesOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
ONEPASS_SAME(kLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
ONEPASS_SAME(kRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS);
ONEPASS_SAME(kMaxDynamicShared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
ONEPASS_SAME(kProgrammaticSerialization, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
ONEPASS_SAME(kNotCapturing, CU_STREAM_CAPTURE_STATUS_NONE);
ONEPASS_SAME(kCapturing, CU_STREAM_CAPTURE_STATUS_ACTIVE);
ONEPASS_SAME(6, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);  // host/tensor_map.cpp
ONEPASS_SAME(9, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
ONEPASS_SAME(0, CU_TENSOR_MAP_INTERLEAVE_NONE);
ONEPASS_SAME(3, CU_TENSOR_MAP_SWIZZLE_128B);
ONEPASS_SAME(3, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
ONEPASS_SAME(0, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

// The same number of parameters in each call, each of the same size.
template <class A, class B>
struct SameShape : std::false_type {};
template <class... A, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct SameShape<Result (*)(A...), Result (*)(B...)> : std::bool_constant<((sizeof(A) == sizeof(B)) && ...)> {};
template <class R, class... A>
Result (*as_result(R (*)(A...)))(A...);

#define ONEPASS_CALL(symbol, member, parameters) \
  static_assert(SameShape<decltype(std::declval<Driver>().member), decltype(as_result(&::symbol))>::value, #symbol);
#undef cuCtxPushCurrent
#undef cuCtxPopCurrent
#undef cuStreamDestroy
#undef cuMemAlloc
#undef cuMemFree
#undef cuMemcpyHtoDAsync
#undef cuMemcpyDtoHAsync
#undef cuMemcpyDtoDAsync
#undef cuEventDestroy
ONEPASS_DRIVER_API(ONEPASS_CALL)
#undef ONEPASS_CALL
#define ONEPASS_CALL(symbol, member, parameters) \
  static_assert(SameShape<decltype(std::declval<Nvrtc>().member), decltype(as_result(&::symbol))>::value, #symbol);
ONEPASS_NVRTC_API(ONEPASS_CALL)

}  // namespace onepass::cuda
