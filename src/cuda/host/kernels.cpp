#include "cuda/host/kernels.hpp"
#include "base/text.hpp"
#include "cuda/host/pretended.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/compile/cubin_cache.hpp"
#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

constexpr int kMaxDevices = 64;
constexpr std::size_t kCounterStride = 64;  // a cache line's distance
constexpr std::size_t kStreamBytes = kCountedStreams * kCounterStride;
constexpr std::size_t kCounterBytes = kStreamBytes + kCountedWorkspaces * kWorkspaceCounters * sizeof(unsigned);

const Driver& need_driver() {
  std::string why;
  if (const Driver* d = driver(&why)) return *d;
  throw Error(ErrorCode::bad_device, text("CUDA is not available: ", why));
}

DeviceFacts read_facts(int ordinal) {
  const Driver& d = need_driver();
  DeviceFacts f;
  int device = 0, count = 0;
  check_cuda(d.device_count(&count), "cuDeviceGetCount");
  if (ordinal < 0 || ordinal >= count)
    throw Error(ErrorCode::bad_device, text("cuda:", ordinal, " does not exist; this machine has ", count,
                                            count == 1 ? " CUDA device" : " CUDA devices"));
  check_cuda(d.device_get(&device, ordinal), "cuDeviceGet");
  char name[256] = {};
  check_cuda(d.device_name(name, sizeof name, device), "cuDeviceGetName");
  f.ordinal = ordinal;
  f.name = name;
  for (const auto& [attribute, into] :
       {std::pair{kComputeMajor, &f.major}, std::pair{kComputeMinor, &f.minor},
        std::pair{kMultiprocessors, &f.multiprocessors}, std::pair{kL2Bytes, &f.l2_bytes},
        std::pair{kSharedBytesOptin, &f.shared_bytes}}) {
    check_cuda(d.device_attribute(into, attribute, device), "cuDeviceGetAttribute");
  }
  f.chip_major = f.major, f.chip_minor = f.minor;
  check_cuda(d.primary_context(&f.context, device), "cuDevicePrimaryCtxRetain");
  const ContextScope scope(f);
  check_cuda(d.mem_alloc(&f.counters, kCounterBytes), "cuMemAlloc");
  check_cuda(d.memset8(f.counters, 0, kCounterBytes, nullptr), "cuMemsetD8Async");
  check_cuda(d.stream_synchronize(nullptr), "cuStreamSynchronize");
  return f;
}

struct Entry {
  std::once_flag once;
  Kernel kernel;
};
using Key = std::tuple<int, std::string, std::string, std::string, std::string>;

// Immutable once made, so a pointer out of the map stays good without the lock.
Entry& entry_of(const Key& key) {
  static std::mutex mutex;
  static std::map<Key, Entry> entries;
  const std::lock_guard lock(mutex);
  return entries[key];
}

}  // namespace

const DeviceFacts& device_facts(int ordinal) {
  if (const DeviceFacts* facts = pretended_device()) return *facts;
  if (ordinal < 0 || ordinal >= kMaxDevices)
    throw Error(ErrorCode::bad_device, text("cuda:", ordinal, " does not exist"));
  need_driver();  // in a child of fork() the rest may be locked for good
  static std::array<std::once_flag, kMaxDevices> once;
  static std::array<DeviceFacts, kMaxDevices> facts;
  std::call_once(once[ordinal], [&] { facts[ordinal] = read_facts(ordinal); });
  return facts[ordinal];
}

ContextScope::ContextScope(const DeviceFacts& device) {
  check_cuda(need_driver().push_context(device.context), "cuCtxPushCurrent");
}
ContextScope::~ContextScope() {
  Context popped = nullptr;
  if (const Driver* d = driver()) d->pop_context(&popped);
}

const Kernel& kernel_for(int device, const KernelProgram& p, int shared_bytes, Stream stream) {
  Entry& entry = entry_of({device, p.file, p.config, p.arch, p.user_code + p.generated});
  std::call_once(entry.once, [&] {
    const Driver& d = need_driver();
    const ContextScope scope(device_facts(device));
    int capturing = kNotCapturing;
    check_cuda(d.stream_is_capturing(stream, &capturing), "cuStreamIsCapturing");
    if (capturing != kNotCapturing) {
      throw Error(
          ErrorCode::unsupported,
          "this problem's kernel is not loaded, and kernels cannot be loaded during a stream capture; prepare the plan "
          "before capturing");
    }
    const Cubin cubin = cubin_for(p);
    Module module = nullptr;
    check_cuda(d.module_load(&module, cubin.bytes.data()), "cuModuleLoadData");
    check_cuda(d.module_function(&entry.kernel.function, module, p.entry.c_str()), "cuModuleGetFunction");
    check_cuda(d.function_set(entry.kernel.function, kMaxDynamicShared, shared_bytes), "cuFuncSetAttribute");
    check_cuda(d.function_get(&entry.kernel.registers, kRegisters, entry.kernel.function), "cuFuncGetAttribute");
    check_cuda(d.function_get(&entry.kernel.local_bytes, kLocalBytes, entry.kernel.function), "cuFuncGetAttribute");
  });
  return entry.kernel;
}

unsigned* stream_counters(const DeviceFacts& device, Stream stream) {
  const Driver& d = need_driver();
  int capturing = kNotCapturing;
  unsigned long long id = 0;  // unique for the process's life, unlike the handle
  if (d.stream_is_capturing(stream, &capturing) != 0 || capturing != kNotCapturing || d.stream_id(stream, &id) != 0)
    return nullptr;
  static std::mutex mutex;
  static std::map<std::pair<int, unsigned long long>, int> places;
  static std::array<int, kMaxDevices> used{};
  const std::lock_guard lock(mutex);
  const auto found = places.find({device.ordinal, id});
  int place = 0;
  if (found != places.end()) {
    place = found->second;
  } else if (used[device.ordinal] < kCountedStreams) {
    place = places[{device.ordinal, id}] = used[device.ordinal]++;
  } else {
    return nullptr;
  }
  return reinterpret_cast<unsigned*>(device.counters + static_cast<DevicePtr>(place) * kCounterStride);
}

unsigned* workspace_counters(const DeviceFacts& device, const void* workspace) {
  static std::shared_mutex mutex;
  static std::map<std::pair<int, const void*>, int> places;
  static std::array<int, kMaxDevices> used{};
  const std::pair key{device.ordinal, workspace};
  const auto at = [&](int place) {
    return reinterpret_cast<unsigned*>(device.counters + kStreamBytes) + std::ptrdiff_t{place} * kWorkspaceCounters;
  };
  {
    const std::shared_lock lock(mutex);
    if (const auto found = places.find(key); found != places.end()) return at(found->second);
  }
  const std::unique_lock lock(mutex);
  if (const auto found = places.find(key); found != places.end()) return at(found->second);
  if (used[device.ordinal] == kCountedWorkspaces) return nullptr;
  return at(places[key] = used[device.ordinal]++);
}

void fill(const DeviceFacts& device, void* memory, float value, std::size_t count, Stream stream) {
  const ContextScope scope(device);
  check_cuda(need_driver().memset32(reinterpret_cast<DevicePtr>(memory), std::bit_cast<unsigned>(value), count, stream),
             "cuMemsetD32Async");
}

DeviceScratch::DeviceScratch(const DeviceFacts& device, std::size_t bytes, Stream stream)
    : device_(device), stream_(stream) {
  if (bytes == 0) return;
  const ContextScope scope(device_);
  if (need_driver().mem_alloc_async(&pointer_, bytes, stream_) != 0) {
    throw Error(ErrorCode::out_of_memory,
                text("cannot allocate ", bytes, " bytes of workspace on cuda:", device_.ordinal));
  }
}
DeviceScratch::~DeviceScratch() {
  Context popped = nullptr;
  const Driver* d = driver();
  if (!d || pointer_ == 0 || d->push_context(device_.context) != 0) return;
  d->mem_free_async(pointer_, stream_);
  d->pop_context(&popped);
}

void launch(const Kernel& kernel, unsigned grid, unsigned block, int shared_bytes, Stream stream, void** parameters,
            bool early, unsigned cluster) {
  constexpr int kCapturesEarlyLaunches = 12030;
  const Driver& d = need_driver();
  LaunchAttribute attribute[2] = {};
  unsigned attributes = 0;
  if (early && d.version >= kCapturesEarlyLaunches) {
    attribute[attributes].id = kProgrammaticSerialization;
    attribute[attributes++].value.number = 1;
  }
  if (cluster > 1) {
    attribute[attributes].id = kClusterDimension;
    std::fill_n(attribute[attributes].value.size, 3, 1u);
    attribute[attributes++].value.size[0] = cluster;
  }
  const LaunchConfig config{grid,   1,         1,         block, 1, 1, static_cast<unsigned>(shared_bytes),
                            stream, attribute, attributes};
  check_cuda(d.launch(&config, kernel.function, parameters, nullptr), "cuLaunchKernelEx");
}

}  // namespace onepass::cuda
