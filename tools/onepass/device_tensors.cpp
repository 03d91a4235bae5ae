#include "tools/onepass/device_tensors.hpp"

#include <algorithm>

#include "problem/roles.hpp"

namespace onepass::cli {

using cuda::check_cuda;

DeviceTensors::DeviceTensors(Device device) : facts_(cuda::device_facts(device.index)) {}

std::byte* DeviceTensors::copy_of(const io::Array& memory) {
  auto* const to = static_cast<std::byte*>(scratch(memory.bytes()));
  const cuda::ContextScope scope(facts_);
  if (memory.bytes() > 0) {
    check_cuda(
        cuda::driver()->copy_to_device(reinterpret_cast<cuda::DevicePtr>(to), memory.data(), memory.bytes(), nullptr),
        "cuMemcpyHtoDAsync");
  }
  return to;
}

Tensors DeviceTensors::copied(const Tensors& host, const std::deque<io::Array>& arrays) {
  Tensors on_device = host;
  const auto move = [&](auto& t) {
    if (!t.given()) return;
    t = copied(t, *std::find_if(arrays.begin(), arrays.end(), [&](const io::Array& a) { return a.data() == t.data; }));
  };
  for_each_role(on_device, [&](const RoleRow&, auto& t) { move(t); });
  for (NamedTensor& named : on_device.mod_buffers) move(named.tensor);
  return on_device;
}

void* DeviceTensors::scratch(std::size_t bytes) {
  return memory_.emplace_back(facts_, bytes + 64, nullptr).data();  // no tensor is without memory
}

void DeviceTensors::fetch(const Tensor& from, const io::Array& into) {
  const cuda::ContextScope scope(facts_);
  if (into.bytes() == 0) return;
  check_cuda(
      cuda::driver()->copy_to_host(into.data(), reinterpret_cast<cuda::DevicePtr>(from.data), into.bytes(), nullptr),
      "cuMemcpyDtoHAsync");
  wait();
}

void DeviceTensors::wait() const {
  const cuda::ContextScope scope(facts_);
  check_cuda(cuda::driver()->stream_synchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace onepass::cli
