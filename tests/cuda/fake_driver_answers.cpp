// The answers of two devices: cuda:0 is as an H200 (compute capability 9.0), cuda:1 as an A100 (8.0).
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
  *count = 2;
  return 0;
}
Result cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
Result cuDeviceGetName(char* name, int size, int device) {
  std::snprintf(name, static_cast<std::size_t>(size), device == 0 ? "H200" : "A100");
  return 0;
}
Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  const bool hopper = device == 0;
  *value = attribute == kComputeMajor       ? (hopper ? 9 : 8)
           : attribute == kComputeMinor     ? 0
           : attribute == kMultiprocessors  ? (hopper ? 132 : 108)
           : attribute == kSharedBytesOptin ? (hopper ? 232448 : 166912)
                                            : 1 << 20;
  return 0;
}
}

}  // namespace onepass::cuda
