// A device with other facts. Plans for one that is not here are explained and compiled; those for the device at hand
// with another GPU's capability run on it.
#pragma once
#include "cuda/host/kernels.hpp"

namespace onepass::cuda {

// While it lives, every CUDA device of this thread's plans has these facts, and the driver is not asked for them.
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
