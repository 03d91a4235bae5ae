// Loaded kernels: one per (device, program), found by a lookup in memory after the first time.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/driver/api.hpp"

namespace onepass::cuda {

struct DeviceFacts {
  int ordinal = 0, major = 0, minor = 0, multiprocessors = 0, l2_bytes = 0,
      shared_bytes = 0;                // shared: most a block may have
  int chip_major = 0, chip_minor = 0;  // what kernels are compiled for; major and minor are what plans are made for
  Context context = nullptr;           // primary
  DevicePtr counters = 0;              // see stream_counters; behind them those of workspaces
  std::string name;
};
// Throws Error naming what is missing (driver, device). Read once per device.
const DeviceFacts& device_facts(int ordinal);

struct Kernel {
  Function function = nullptr;
  int registers = 0, local_bytes = 0;
};
// Compiles or loads on first use; `shared_bytes` of dynamic shared memory are made available to it. Thread-safe: two
// threads that want the same kernel compile it once. Throws Error inside a stream capture if it would have to compile.
const Kernel& kernel_for(int device, const KernelProgram& program, int shared_bytes, Stream stream);

// Kernels of one family by the values (comparable by ==) that their programs are printed from: printing takes 100 us,
// and is done only for a kernel that is not loaded yet. Thread-safe.
template <class Values>
class KernelTable {
 public:
  // program(): the KernelProgram of these values.
  template <class MakeProgram>
  const Kernel& find(int device, const Values& values, int shared_bytes, Stream stream, const MakeProgram& program) {
    {
      const std::shared_lock lock(mutex_);
      for (const Entry& e : entries_) {
        if (e.device == device && e.values == values) return *e.kernel;
      }
    }
    const KernelProgram printed = program();
    const Kernel& kernel = kernel_for(device, printed, shared_bytes, stream);
    const std::unique_lock lock(mutex_);
    entries_.push_back({device, values, &kernel});
    return kernel;
  }

 private:
  struct Entry {
    int device;
    Values values;
    const Kernel* kernel;
  };
  std::shared_mutex mutex_;
  std::deque<Entry> entries_;
};

// Makes the device's primary context current for a scope.
class ContextScope {
 public:
  explicit ContextScope(const DeviceFacts& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
};

// Stream-ordered scratch memory on a device, freed when the stream has passed the end of the scope.
class DeviceScratch {
 public:
  DeviceScratch(const DeviceFacts& device, std::size_t bytes, Stream stream);  // throws Error (out_of_memory)
  ~DeviceScratch();
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;
  void* data() const { return reinterpret_cast<void*>(pointer_); }

 private:
  const DeviceFacts& device_;
  Stream stream_;
  DevicePtr pointer_ = 0;
};

// Sets `count` numbers in device memory.
void fill(const DeviceFacts& device, void* memory, float value, std::size_t count, Stream stream);

// Two counters of a persistent kernel for its launches on one stream, which follow each other: zero when a kernel
// starts and left at zero by it, so that no launch needs a memset in front (2 us). nullptr inside a stream capture,
// whose graph may run on any stream, and beyond kCountedStreams streams: the caller zeroes counters of its own.
inline constexpr int kCountedStreams = 1024;
unsigned* stream_counters(const DeviceFacts& device, Stream stream);

// kWorkspaceCounters counters of a workspace, which is one launch's at a time: zero when a kernel starts and left at
// zero by it. They go with the address, so that graphs have them, too: a captured launch needs no memset in front.
// nullptr beyond kCountedWorkspaces addresses: the caller zeroes counters of its own.
inline constexpr int kCountedWorkspaces = 4096, kWorkspaceCounters = 256;
unsigned* workspace_counters(const DeviceFacts& device, const void* workspace);

// The only launch in the library. early: blocks may start before the launch in front has ended, since the kernel waits
// for that itself (device/order.cuh); where the driver can do so also in a graph, else as any other. cluster: the
// number of CTAs of a cluster (sm_90), which divides the grid.
void launch(const Kernel& kernel, unsigned grid, unsigned block, int shared_bytes, Stream stream, void** parameters,
            bool early = false, unsigned cluster = 1);

}  // namespace onepass::cuda
