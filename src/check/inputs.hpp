// Random inputs that expose wrong kernels, in exactly the layout that a problem asks for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "check/buffer.hpp"
#include "onepass/attention.hpp"
#include "plan/compute.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/problem.hpp"
#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"
#include "problem/tensors.hpp"
#include "reference/gradients.hpp"

namespace onepass::check {

// The scores of a row. V is N(0.5, 1) in all distributions: a mean of 0 would hide wrong sums.
enum class Distribution {
  normal,  // standard deviation 4
  rising,  // the maximum rises by 2.5 every 64 keys (16-bit types: by 40 at most), falls in odd K/V heads; plus N(0, 1)
  one_hot,  // the score of one visible key of each row is 30 above the mean of the others
  huge,     // standard deviations of 3e4 to 3e30 from row to row (fp16: to 1e7)
};
inline constexpr Distribution kDistributions[] = {Distribution::normal, Distribution::rising, Distribution::one_hot,
                                                  Distribution::huge};
std::string_view name_of(Distribution distribution);

// Everything that one call needs. Memory that a kernel must not read is NaN: gaps between strided rows, packed tokens
// that belong to no sequence, the bytes around every buffer. Outputs start as NaN too.
// Boolean masks have fully masked rows, fully masked and fully visible 32 x 64 blocks. Biases are N(0, 2) with entries
// of -inf. In the parts of a merge every sixth row is empty, and every eleventh row is empty in all parts. An odd seed
// pads the rows of lse, bias and mask and gives ALiBi slopes per batch entry.
struct Inputs {
  Problem problem;  // as the tensors have it: strides of size-1 dimensions are 0
  Tensors tensors;
  CallOptions attention;
  Launch launch;
  std::string implementation;   // by name; empty: the first that accepts
  std::vector<Buffer> buffers;  // memory of the tensors by role, then of the mod buffers or of a merge's parts

  Buffer& buffer(Role role) { return buffers[static_cast<std::size_t>(role)]; }
  const Buffer& buffer(Role role) const { return buffers[static_cast<std::size_t>(role)]; }
  // The memory of an input; a caller that writes there calls changed().
  template <class T>
  static T* writable(const ConstTensor& t) {
    return static_cast<T*>(const_cast<void*>(t.data));
  }
  void attend() const { plan::compute(problem.op, tensors, attention, launch, implementation); }

  void poison_outputs();
  // Empty, or a sentence about the first byte that was written outside the elements of the outputs.
  std::string touched() const;
  // To be called after an input has changed. Forgets oracle and base, and computes what a backward or a backward_jvp
  // reads of a forward again.
  void changed();
  void forget();  // only forgets oracle and base
  const reference::Dense& oracle(Executor& executor);
  const reference::Dense& base(Executor& executor);
  const reference::DenseGradients& oracle_gradients(Executor& executor);
  const reference::DenseGradients& base_gradients(Executor& executor);
  const reference::DenseTangents& oracle_tangents(Executor& executor);
  const reference::DenseTangents& base_tangents(Executor& executor);
  const reference::DenseGradients& oracle_second(Executor& executor);
  const reference::DenseGradients& base_second(Executor& executor);
  // The attention in an FP8 attention: its q, k and v are quantized by the CPU, its other tensors are these. It does
  // not have buffers for its outputs.
  Inputs& quantized();
  // The call of precision=tf32 in fp32. It does not have buffers.
  Inputs& exact();

 private:
  std::shared_ptr<Inputs> exact_;
  std::shared_ptr<Inputs> quantized_;
  std::vector<std::vector<std::byte>> quantized_memory_;
  std::shared_ptr<const reference::Dense> oracle_, base_;
  std::shared_ptr<const reference::DenseGradients> oracle_gradients_, base_gradients_, oracle_second_, base_second_;
  std::shared_ptr<const reference::DenseTangents> oracle_tangents_, base_tangents_;
};

// Throws Error if the problem is not valid, not on the CPU, or packed without lengths. In the page placements inputs
// are read-only: a kernel that writes to them faults.
Inputs make_inputs(const Problem& problem, std::uint64_t seed = 0, Distribution distribution = Distribution::normal,
                   Placement placement = Placement::middle);

}  // namespace onepass::check
