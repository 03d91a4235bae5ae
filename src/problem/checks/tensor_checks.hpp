// The checks of every tensor of a call, before anything else of it is read, and how it lies.
#pragma once
#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "base/text.hpp"
#include "onepass/tensor.hpp"
#include "problem/problem.hpp"
#include "problem/tensors.hpp"

namespace onepass {

// A tensor's shape, a device, in a sentence of want(), which prints them only if it is needed: a shape's text of a
// call's eleven tensors is 5 us.
struct ShownShape {
  const ConstTensor& tensor;
  friend std::ostream& operator<<(std::ostream& out, const ShownShape& s) { return out << shape_text(s.tensor); }
};
struct ShownDevice {
  Device device;
  friend std::ostream& operator<<(std::ostream& out, const ShownDevice& d) { return out << to_string(d.device); }
};
// Up to `rank` dimensions: what is missing in front has size 1.
template <class Data>
void widen(BasicTensor<Data>& t, int rank) {
  const int missing = rank - t.rank;
  if (missing <= 0) return;
  std::rotate(t.shape.begin(), t.shape.begin() + t.rank, t.shape.begin() + rank);
  std::rotate(t.stride.begin(), t.stride.begin() + t.rank, t.stride.begin() + rank);
  std::fill_n(t.shape.begin(), missing, 1);
  std::fill_n(t.stride.begin(), missing, 0);
  t.rank = rank;
}

// The dtypes of most tensors of numbers.
inline bool is_data(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }
// k and v may have this dtype beside a q of that one: as q, or narrower. Then the words for it.
inline bool is_key_dtype(DType t, DType q) {
  return t == q || (t == DType::f8e4m3 && is_data(q)) || (is_data(t) && q == DType::f32);
}
inline std::string accepted_keys(DType q, const char* name) {
  if (q == DType::f32) return "fp32, fp16, bf16 or fp8_e4m3";
  return text(name_of(q), ", as ", name, q == DType::f8e4m3 ? "" : ", or fp8_e4m3");
}

// Behind the dtype of a tensor that may be fp32 instead, in a sentence.
inline const char* or_fp32(DType like) { return like == DType::f32 ? "" : ", or fp32"; }

// Given, of a rank, dtype and device that exist, without negative sizes, with data if it has elements. Throws Error.
void check_tensor(std::string_view name, const ConstTensor& t);

// The tensors that the operator needs are given, and no others; each passes check_tensor and is on the device of the
// operator's base. Throws Error.
void check_roles(Op op, const Tensors& tensors);

// The strides and alignments of checked tensors go into the problem, which says already if they are packed or paged.
void take_layout(Problem& problem, const Tensors& tensors);

// The alignment of an address: the largest power of two, up to 16, that divides it. On the CPU, whose kernels read any,
// always 16.
std::uint8_t alignment_of(const ConstTensor& t);

// No two of its elements are one. Throws Error.
void check_output(std::string_view name, const ConstTensor& t);
// The same of all outputs of a call.
void check_outputs(Op op, const Tensors& tensors);

}  // namespace onepass
