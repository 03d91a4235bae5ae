// Copies of a problem's inputs on a CUDA device, with poison around them. The outputs are fetched to be judged.
#pragma once
#include <vector>

#include "check/inputs.hpp"
#include "check/verdict/verdict.hpp"
#include "cuda/host/kernels.hpp"
#include "problem/implementation.hpp"

namespace onepass::check {

class DeviceMirror {
 public:
  // `inputs` (on the CPU) must outlive the mirror. Throws Error if there is no such device or not enough memory.
  DeviceMirror(Inputs& inputs, int device);
  ~DeviceMirror();
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;

  const Problem& problem() const { return problem_; }  // the twin on the device
  const Tensors& tensors() const { return tensors_; }
  void poison_outputs();
  void fetch_outputs();  // into the inputs' own buffers; throws Error if a byte around a device buffer was written

 private:
  struct Copy {
    Buffer* host;
    cuda::DevicePtr base, data;
    bool output;
  };
  static constexpr std::size_t kGuard = 4096;

  const cuda::DeviceFacts& device_;
  Inputs& inputs_;
  Problem problem_;
  Tensors tensors_;
  std::vector<Copy> copies_;
};

// As check(), on the device: through the implementation with a poisoned, guarded device workspace.
Verdict check_on_device(const Implementation& implementation, Inputs& inputs, int device,
                        Executor& executor = default_executor());

}  // namespace onepass::check
