// What the library asks of a device: one of compute capability 9.0, as an H200.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "cuda/driver/api.hpp"
#include "cuda/fake_launches.hpp"

namespace onepass::cuda {

extern "C" {
std::atomic<bool> fake_init_waits{false}, fake_init_has_begun{false};  // for tests that come in the middle of cuInit

FakeLaunches fake_launches;

Result cuModuleLoadData(Module*, const void*) {
  ++fake_launches.modules;
  return 0;
}
Result cuLaunchKernelEx(const LaunchConfig* config, Function, void**, void**) {
  if (fake_launches.result != 0) return fake_launches.result;
  ++fake_launches.launches;
  fake_launches.last = *config;
  return 0;
}

Result cuInit(unsigned) {
  fake_init_has_begun = true;
  while (fake_init_waits) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return 0;
}
Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
Result cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
Result cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, static_cast<std::size_t>(size), "a fake");
  return 0;
}
Result cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == kComputeMajor       ? 9
           : attribute == kComputeMinor     ? 0
           : attribute == kMultiprocessors  ? 132
           : attribute == kSharedBytesOptin ? 232448
                                            : 1 << 20;
  return 0;
}
}

}  // namespace onepass::cuda
