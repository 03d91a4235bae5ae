// Memory of one call, where the problem's tensors are.
#pragma once
#include <cstddef>
#include <memory>

#include "cuda/host/kernels.hpp"
#include "onepass/workspace.hpp"

namespace onepass {

class Scratch {
 public:
  Scratch(Device device, std::size_t bytes, void* stream) {
    if (bytes == 0) return;
    if (device.kind == DeviceKind::cuda) {
      on_device_ = std::make_unique<cuda::DeviceScratch>(cuda::device_facts(device.index), bytes,
                                                         static_cast<cuda::Stream>(stream));
      return;
    }
    host_ = on_host_.take(bytes).data();
  }
  void* data() const { return on_device_ ? on_device_->data() : host_; }

 private:
  WorkspaceMemory on_host_;
  std::byte* host_ = nullptr;
  std::unique_ptr<cuda::DeviceScratch> on_device_;
};

}  // namespace onepass
