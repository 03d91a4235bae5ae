// Memory of the device that attention runs on. The CUDA driver is opened at run time, so the demo builds everywhere.
#pragma once
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "onepass/onepass.hpp"

namespace engine {

class Cuda {
 public:
  Cuda() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) throw std::runtime_error("this machine has no CUDA driver");
    int device = 0;
    void* context = nullptr;
    call<unsigned>("cuInit", 0);
    call<int*, int>("cuDeviceGet", &device, 0);
    call<void**, int>("cuDevicePrimaryCtxRetain", &context, device);
    call<void*>("cuCtxSetCurrent", context);
  }
  void* allocate(std::size_t bytes) const {
    void* address = nullptr;
    call<void**, std::size_t>("cuMemAlloc_v2", &address, bytes);
    return address;
  }
  // Copies wait for the work before them on the legacy default stream, which attention runs on too.
  void up(void* to, const void* from, std::size_t bytes) const {
    call<void*, const void*, std::size_t>("cuMemcpyHtoD_v2", to, from, bytes);
  }
  void down(void* to, const void* from, std::size_t bytes) const {
    call<void*, const void*, std::size_t>("cuMemcpyDtoH_v2", to, from, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) const {
    call<void*, const void*, std::size_t>("cuMemcpyDtoD_v2", to, from, bytes);
  }

 private:
  template <class... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    const int code = function == nullptr ? -1 : function(arguments...);
    if (code != 0) throw std::runtime_error(std::string(name) + " failed with code " + std::to_string(code));
  }
  void* library_;
};

// A copy of host numbers on the device. Without CUDA (nullptr) it is the host's memory itself.
template <class T>
class Mirror {
 public:
  explicit Mirror(const Cuda* cuda) : cuda_(cuda) {}
  T* up(std::vector<T>& host) {
    if (cuda_ == nullptr) return host.data();
    room(host.size());
    cuda_->up(memory_, host.data(), host.size() * sizeof(T));
    return memory_;
  }
  T* room(std::size_t elements) {  // grows only; the demo ends before it would have to free
    if (elements > capacity_) {
      capacity_ = 2 * elements;
      memory_ = static_cast<T*>(cuda_->allocate(capacity_ * sizeof(T)));
    }
    return memory_;
  }
  // Row `from` of `memory`, whose rows have `width` elements, to row `to`.
  void copy(T* memory, std::int64_t width, std::int64_t from, std::int64_t to) const {
    if (cuda_ == nullptr)
      std::copy_n(memory + from * width, width, memory + to * width);
    else
      cuda_->copy(memory + to * width, memory + from * width, static_cast<std::size_t>(width) * sizeof(T));
  }
  T* place_of(std::vector<T>& host) { return cuda_ == nullptr ? host.data() : room(host.size()); }
  void down(std::vector<T>& host) const {
    if (cuda_ != nullptr) cuda_->down(host.data(), memory_, host.size() * sizeof(T));
  }

 private:
  const Cuda* cuda_;
  T* memory_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace engine
