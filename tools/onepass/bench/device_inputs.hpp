// Random inputs of a problem on a CUDA device, to be timed, not judged: N(0, 1), as peers get them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/host/kernels.hpp"
#include "problem/implementation.hpp"
#include "tools/onepass/bench/poison.hpp"

namespace onepass::bench {

// N(0, 1) elements in a floating dtype; bool: true with probability 1/2; int32: the
// ids of documents of 512 tokens. `bytes` is a multiple of the element's size.
// Some 1 ns an element: 65536 normals are drawn once per call and picked by 16 bits each.
void fill_random(std::byte* to, std::size_t bytes, DType dtype, std::uint64_t seed);

// The tensors of a problem with no memory behind them: what has to be allocated.
Tensors shaped(const Problem& problem);
std::size_t bytes_spanned(const ConstTensor& tensor);  // from its first element to its last

// A CUDA device's memory, freed with the object.
class DeviceMemory {
 public:
  DeviceMemory(const cuda::DeviceFacts& device, std::size_t bytes);  // throws Error
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  cuda::DevicePtr at = 0;

 private:
  const cuda::DeviceFacts* device_;
};

class DeviceInputs {
 public:
  // The problem's device is a CUDA device. Throws Error.
  explicit DeviceInputs(const Problem& problem, const std::vector<Poison>& poisons = {});
  Problem problem;  // as the tensors have it
  Tensors tensors;
  CallOptions attention;

 private:
  std::vector<DeviceMemory> memory_;
};

}  // namespace onepass::bench
