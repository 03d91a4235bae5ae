// A device that is not here, for explain(): plans are made for it, and nothing of them can run.
#pragma once
#include "cuda/host/kernels.hpp"

namespace onepass::cuda {

// While it lives, every CUDA device of this thread's plans has these facts, and no driver is asked for.
class PretendedDevice {
 public:
  explicit PretendedDevice(DeviceFacts facts);
  ~PretendedDevice();
  PretendedDevice(const PretendedDevice&) = delete;
  PretendedDevice& operator=(const PretendedDevice&) = delete;

 private:
  const DeviceFacts facts_;
  const DeviceFacts* const before_;
};
const DeviceFacts* pretended_device();  // null: none

}  // namespace onepass::cuda
