// Tensors of `onepass run --device cuda`: copies of arrays on a device, and results fetched from there.
#pragma once
#include <cstddef>
#include <deque>

#include "cuda/host/kernels.hpp"
#include "problem/implementation.hpp"
#include "tools/onepass/io/array.hpp"

namespace onepass::cli {

class DeviceTensors {
 public:
  explicit DeviceTensors(Device device);  // throws Error if there is none

  // The same view of a copy on the device of `memory`, into which `view` points.
  template <class Data>
  BasicTensor<Data> copied(BasicTensor<Data> view, const io::Array& memory) {
    auto* const to = copy_of(memory);
    view.data = to + (static_cast<const std::byte*>(view.data) - memory.data());
    view.device = {DeviceKind::cuda, facts_.ordinal};
    return view;
  }
  // All given inputs; `arrays` are the memory behind them.
  Tensors copied(const Tensors& host, const std::deque<io::Array>& arrays);
  void* scratch(std::size_t bytes);
  void fetch(const Tensor& from, const io::Array& into);  // `from` begins where its copy does
  void wait() const;                                      // until everything enqueued is done

 private:
  std::byte* copy_of(const io::Array& memory);

  const cuda::DeviceFacts& facts_;
  std::deque<cuda::DeviceScratch> memory_;
};

}  // namespace onepass::cli
