// Finds out if two tensors share a byte. An output must not share one with an input.
#pragma once
#include <cstdint>

#include "onepass/tensor.hpp"

namespace onepass {

// The bytes from a view's first to its last, [from, to); none if it has no element.
struct Extent {
  std::uint64_t from = 0, to = 0;
};
Extent extent_of(const ConstTensor& t);

// Most pairs are settled by their extents. Where these meet, the answer is exact for all views that slicing (with any
// steps), permuting, reversing and broadcasting make of one tensor, and so for slices of a packed qkv, which lie
// between each other without sharing an element. For other strides the search ends after some 10^4 steps, and the
// answer is yes. Tensors on different devices share nothing.
bool share_memory(const ConstTensor& a, const Extent& of_a, const ConstTensor& b, const Extent& of_b);
inline bool share_memory(const ConstTensor& a, const ConstTensor& b) {
  return share_memory(a, extent_of(a), b, extent_of(b));
}

}  // namespace onepass
