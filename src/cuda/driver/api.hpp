// The part of the CUDA driver API and of NVRTC that the library uses, opened at run time: no toolkit is needed to
// build, and one binary serves machines with and without a GPU. Types and values are those of the stable C ABIs of
// cuda.h and nvrtc.h (CUDA 12.0 and later); tests/cuda/abi.cpp compares them with the headers where a toolkit is
// installed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace onepass::cuda {

using Result = int;  // CUresult, nvrtcResult: 0 is success
using DevicePtr = std::uint64_t;
using Context = struct ContextHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Program = struct ProgramHandle*;

struct alignas(128) TensorMap {  // CUtensorMap (aligned to 64 before CUDA 13)
  std::uint64_t opaque[16];
};

struct LaunchAttribute {  // CUlaunchAttribute
  int id, unused;
  union {
    char bytes[64];
    int number;
    unsigned size[3];
  } value;
};
inline constexpr int kClusterDimension = 4;           // an attribute's id; its value: CTAs along x, y, z
inline constexpr int kProgrammaticSerialization = 6;  // 1

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  Stream stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};

enum DeviceAttribute : int {
  kMultiprocessors = 16,
  kComputeMajor = 75,
  kComputeMinor = 76,
  kL2Bytes = 38,
  kSharedBytesOptin = 97,
};
enum FunctionAttribute : int { kLocalBytes = 3, kRegisters = 4, kMaxDynamicShared = 8 };
enum CaptureStatus : int { kNotCapturing = 0, kCapturing = 1, kCaptureInvalid = 2 };

// name in the library, member name, parameters
#define ONEPASS_DRIVER_API(X)                                                                                   \
  X(cuInit, init, (unsigned flags))                                                                             \
  X(cuDriverGetVersion, driver_version, (int* version))                                                         \
  X(cuDeviceGetCount, device_count, (int* count))                                                               \
  X(cuDeviceGet, device_get, (int* device, int ordinal))                                                        \
  X(cuDeviceGetName, device_name, (char* name, int size, int device))                                           \
  X(cuDeviceGetAttribute, device_attribute, (int* value, int attribute, int device))                            \
  X(cuDevicePrimaryCtxRetain, primary_context, (Context * context, int device))                                 \
  X(cuCtxPushCurrent_v2, push_context, (Context context))                                                       \
  X(cuCtxPopCurrent_v2, pop_context, (Context * context))                                                       \
  X(cuModuleLoadData, module_load, (Module * module, const void* image))                                        \
  X(cuModuleUnload, module_unload, (Module module))                                                             \
  X(cuModuleGetFunction, module_function, (Function * function, Module module, const char* name))               \
  X(cuFuncSetAttribute, function_set, (Function function, int attribute, int value))                            \
  X(cuFuncGetAttribute, function_get, (int* value, int attribute, Function function))                           \
  X(cuLaunchKernelEx, launch, (const LaunchConfig* config, Function function, void** parameters, void** extra)) \
  X(cuTensorMapEncodeTiled, encode_tiled,                                                                       \
    (TensorMap * map, int dtype, unsigned rank, void* address, const std::uint64_t* sizes,                      \
     const std::uint64_t* byte_strides, const std::uint32_t* box, const std::uint32_t* element_strides,         \
     int interleave, int swizzle, int l2_promotion, int out_of_bounds_fill))                                    \
  X(cuStreamIsCapturing, stream_is_capturing, (Stream stream, int* status))                                     \
  X(cuStreamGetId, stream_id, (Stream stream, unsigned long long* id))                                          \
  X(cuStreamSynchronize, stream_synchronize, (Stream stream))                                                   \
  X(cuStreamCreate, stream_create, (Stream * stream, unsigned flags))                                           \
  X(cuStreamDestroy_v2, stream_destroy, (Stream stream))                                                        \
  X(cuMemAlloc_v2, mem_alloc, (DevicePtr * pointer, std::size_t bytes))                                         \
  X(cuMemFree_v2, mem_free, (DevicePtr pointer))                                                                \
  X(cuMemAllocAsync, mem_alloc_async, (DevicePtr * pointer, std::size_t bytes, Stream stream))                  \
  X(cuMemFreeAsync, mem_free_async, (DevicePtr pointer, Stream stream))                                         \
  X(cuMemcpyHtoDAsync_v2, copy_to_device, (DevicePtr to, const void* from, std::size_t bytes, Stream stream))   \
  X(cuMemcpyDtoHAsync_v2, copy_to_host, (void* to, DevicePtr from, std::size_t bytes, Stream stream))           \
  X(cuMemcpyDtoDAsync_v2, copy_on_device, (DevicePtr to, DevicePtr from, std::size_t bytes, Stream stream))     \
  X(cuMemsetD8Async, memset8, (DevicePtr pointer, unsigned char value, std::size_t bytes, Stream stream))       \
  X(cuMemsetD32Async, memset32, (DevicePtr pointer, unsigned value, std::size_t words, Stream stream))          \
  X(cuEventCreate, event_create, (Event * event, unsigned flags))                                               \
  X(cuEventDestroy_v2, event_destroy, (Event event))                                                            \
  X(cuEventRecord, event_record, (Event event, Stream stream))                                                  \
  X(cuEventSynchronize, event_synchronize, (Event event))                                                       \
  X(cuEventElapsedTime, event_elapsed, (float* milliseconds, Event from, Event to))                             \
  X(cuGetErrorString, error_string, (Result result, const char** text))

#define ONEPASS_NVRTC_API(X)                                                                         \
  X(nvrtcVersion, version, (int* major, int* minor))                                                 \
  X(nvrtcCreateProgram, create,                                                                      \
    (Program * program, const char* source, const char* name, int headers, const char* const* texts, \
     const char* const* names))                                                                      \
  X(nvrtcCompileProgram, compile, (Program program, int options, const char* const* values))         \
  X(nvrtcGetProgramLogSize, log_size, (Program program, std::size_t* bytes))                         \
  X(nvrtcGetProgramLog, log, (Program program, char* text))                                          \
  X(nvrtcGetCUBINSize, cubin_size, (Program program, std::size_t* bytes))                            \
  X(nvrtcGetCUBIN, cubin, (Program program, char* bytes))                                            \
  X(nvrtcDestroyProgram, destroy, (Program * program))

#define ONEPASS_MEMBER(symbol, member, parameters) Result(*member) parameters = nullptr;
struct Driver {
  int version = 0;  // 13000 for 13.0
  ONEPASS_DRIVER_API(ONEPASS_MEMBER)
};
struct Nvrtc {
  int major = 0, minor = 0;
  ONEPASS_NVRTC_API(ONEPASS_MEMBER)
};
#undef ONEPASS_MEMBER

// Opened and initialised on first use; nullptr with a sentence in `why` if the machine lacks the library, a function of
// it, or a new enough version; the driver also in a child of fork() whose parent had opened it, so a caller that asks
// for it first touches nothing that a lost thread had locked. $ONEPASS_NVRTC names the one libnvrtc to open.
// Thread-safe.
const Driver* driver(std::string* why = nullptr);
const Nvrtc* nvrtc(std::string* why = nullptr);
// Paths at which to look for libnvrtc if the system's loader knows of none. Only before the first nvrtc(), and once.
void offer_nvrtc(std::vector<std::string> paths);

// The oldest versions that have everything the kernels need: tensor maps and cuLaunchKernelEx; sm_90a and C++20.
inline constexpr int kMinDriver = 12000, kMinNvrtcMajor = 12, kMinNvrtcMinor = 3;

// Throws Error naming the call, the driver's own text and the number if result is not 0.
void check_cuda(Result result, const char* call);

}  // namespace onepass::cuda
