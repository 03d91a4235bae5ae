#include "cuda/host/pretended.hpp"

#include <utility>

namespace onepass::cuda {
namespace {
thread_local const DeviceFacts* pretended = nullptr;
}  // namespace

PretendedDevice::PretendedDevice(DeviceFacts facts) : facts_(std::move(facts)), before_(pretended) {
  pretended = &facts_;
}
PretendedDevice::~PretendedDevice() { pretended = before_; }

const DeviceFacts* pretended_device() { return pretended; }

}  // namespace onepass::cuda
