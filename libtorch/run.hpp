// How a call from PyTorch runs: on its threads or its stream, in its memory.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "libtorch/values.hpp"
#include "onepass/launch.hpp"
#include "problem/operator.hpp"
#include "problem/tensors.hpp"

namespace onepass::libtorch {

// PyTorch's own CPU threads. They wait for work by spinning for a while, so threads of another pool would have to share
// the cores with them whenever attention follows one of PyTorch's operators.
class TorchThreads final : public Executor {
 public:
  TorchThreads();
  int workers() const override { return threads_; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override;

 private:
  int threads_;
};

// The threads and the stream of a call: `threads` of the library's own, or PyTorch's if it says nothing.
class Place {
 public:
  Place(Device device, std::optional<std::int64_t> threads);
  Launch launch();

 private:
  Device device_;
  TorchThreads theirs_;
  Executor* executor_;
};

// Plans and runs a call, with scratch memory of PyTorch's, which reuses it in stream order. like: a tensor on its
// device.
void run(Op op, const Tensors& tensors, const CallOptions& options, Place& place, AtenTensorHandle like,
         std::string_view implementation);

void* stream_of(int device);  // PyTorch's current one

}  // namespace onepass::libtorch
