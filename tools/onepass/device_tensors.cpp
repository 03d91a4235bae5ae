#include "device_tensors.hpp"

#include <algorithm>

namespace onepass::cli {

using cuda::check_cuda;

DeviceTensors::DeviceTensors(Device device) : facts_(cuda::device_facts(device.index)) {}

Tensor DeviceTensors::copied(Tensor view, const io::Array& memory) {
  auto* const to = static_cast<std::byte*>(scratch(memory.bytes()));
  const cuda::ContextScope scope(facts_);
  if (memory.bytes() > 0) {
    check_cuda(
        cuda::driver()->copy_to_device(reinterpret_cast<cuda::DevicePtr>(to), memory.data(), memory.bytes(), nullptr),
        "cuMemcpyHtoDAsync");
  }
  view.data = to + (static_cast<const std::byte*>(view.data) - memory.data());
  view.device = {DeviceKind::cuda, facts_.ordinal};
  return view;
}

Arguments DeviceTensors::copied(const Arguments& host, const std::deque<io::Array>& arrays) {
  Arguments on_device = host;
  const auto memory_of = [&](const Tensor& t) -> const io::Array& {
    return *std::find_if(arrays.begin(), arrays.end(), [&](const io::Array& a) { return a.data() == t.data; });
  };
  for (Tensor* t : {&on_device.q, &on_device.k, &on_device.v, &on_device.bias, &on_device.bool_mask,
                    &on_device.alibi_slopes, &on_device.sinks, &on_device.cu_seqlens_q, &on_device.cu_seqlens_k}) {
    if (t->given()) *t = copied(*t, memory_of(*t));
  }
  for (NamedTensor& named : on_device.mod_buffers) named.tensor = copied(named.tensor, memory_of(named.tensor));
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
