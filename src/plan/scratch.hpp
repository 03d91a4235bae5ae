// Memory of one call, where the problem's tensors are.
#pragma once
#include <cstddef>
#include <memory>
#include <new>

#include "base/text.hpp"
#include "cuda/host/kernels.hpp"
#include "onepass/error.hpp"

namespace onepass {

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
};

class Scratch {
 public:
  Scratch(Device device, std::size_t bytes, void* stream) {
    if (bytes == 0) return;
    if (device.kind == DeviceKind::cuda) {
      on_device_ = std::make_unique<cuda::DeviceScratch>(cuda::device_facts(device.index), bytes,
                                                         static_cast<cuda::Stream>(stream));
      return;
    }
    on_host_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}, std::nothrow)));
    want(on_host_ != nullptr, ErrorCode::out_of_memory, "cannot allocate ", bytes, " bytes of workspace");
  }
  void* data() const { return on_device_ ? on_device_->data() : on_host_.get(); }

 private:
  std::unique_ptr<std::byte, FreeAligned> on_host_;
  std::unique_ptr<cuda::DeviceScratch> on_device_;
};

}  // namespace onepass
