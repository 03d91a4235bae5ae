// An append's tensors on a CUDA device.
#pragma once
#include <string>
#include <vector>

#include "cuda/host/kernels.hpp"
#include "support/append_case.hpp"

namespace onepass::check {

// The memory of a case, copied to a device, and the same tensors there. The case must outlive it.
class DeviceAppend {
 public:
  explicit DeviceAppend(AppendCase& host, int device = 0)
      : facts_(cuda::device_facts(device)), scope_(facts_), host_(host), tensors(host.tensors) {
    for (const AppendCase::Memory& m : host.memory) {
      cuda::DevicePtr at = 0;
      cuda::check_cuda(cuda::driver()->mem_alloc(&at, m.bytes.size() + 16), "cuMemAlloc");
      places_.push_back(at);
      const auto move = [&](auto& t) {
        t.data = reinterpret_cast<decltype(t.data)>(at);
        t.device = {DeviceKind::cuda, device};
      };
      if (m.input) move(tensors.*m.input);
      if (m.output) move(tensors.*m.output);
    }
    upload();
  }
  ~DeviceAppend() {
    for (const cuda::DevicePtr at : places_) cuda::driver()->mem_free(at);
  }
  DeviceAppend(const DeviceAppend&) = delete;
  DeviceAppend& operator=(const DeviceAppend&) = delete;

  void upload() {
    each([&](AppendCase::Memory& m, cuda::DevicePtr at) {
      cuda::check_cuda(cuda::driver()->copy_to_device(at, m.bytes.data(), m.bytes.size(), nullptr), "cuMemcpyHtoD");
    });
  }
  // Into the case's memory.
  void fetch() {
    each([&](AppendCase::Memory& m, cuda::DevicePtr at) {
      cuda::check_cuda(cuda::driver()->copy_to_host(m.bytes.data(), at, m.bytes.size(), nullptr), "cuMemcpyDtoH");
    });
  }

 private:
  const cuda::DeviceFacts& facts_;
  cuda::ContextScope scope_;
  AppendCase& host_;
  std::vector<cuda::DevicePtr> places_;

  template <class F>
  void each(const F& f) {
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (!host_.memory[i].bytes.empty()) f(host_.memory[i], places_[i]);
    cuda::check_cuda(cuda::driver()->stream_synchronize(nullptr), "cuStreamSynchronize");
  }

 public:
  AppendTensors tensors;
};

}  // namespace onepass::check
