// From the tensors and options of a call to a checked Problem, and from a Problem to its sequences.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "algebra/mask.hpp"
#include "onepass/attention.hpp"
#include "problem/checked_problem.hpp"
#include "problem/implementation.hpp"
#include "problem/operator.hpp"

namespace onepass {

// The problem of a call: everything is checked, shapes, strides, dtypes, devices, option values and (on the CPU) the
// contents of cu_seqlens. Throws Error with one sentence. Into *mods, if it is given: its parsed expressions
// (problem/checked_problem.hpp).
Problem problem_of(Op op, const Tensors& tensors, const CallOptions& options, Mods* mods = nullptr);
// The same of a caller's call, which must have seqused_k beside a page_table: a page table alone would make every
// sequence as long as its row, with stale keys behind the real ones. Problem lines may have it alone.
Problem problem_of_call(Op op, const Tensors& tensors, const CallOptions& options, Mods* mods = nullptr);
// The problem of a call of attention, of its backward if dout is given, of jvp if tout is, or of backward_jvp.
Problem problem_of(const Tensors& tensors, const Attention& attention);
// The options of a problem's calls, with its bounds of lengths.
CallOptions attention_of(const Problem& problem);
// max_seqlen_q and max_seqlen_k as the problem has them.
void bound_lengths(Attention& attention, const Problem& problem);
// Throws Error unless the tensors are those of the problem, at least as aligned.
void check_planned(const Problem& problem, const Tensors& tensors);
// Throws Error if an output shares memory with another tensor of the call. Measured on a 2.5 GHz Xeon: 110 ns for a
// plain call with lse, 190 with bias, mask, slopes and sinks, 390 where q, k, v and out are slots of one buffer.
void check_apart(Op op, const Tensors& tensors);

// The pages of one sequence: key j lies in page of(j) at j % size. size 0: there are none.
struct Pages {
  const std::int32_t* entry = nullptr;  // null: all pages in their order
  std::int64_t stride = 0, size = 0;

  std::int64_t of(std::int64_t key) const { return entry ? entry[key / size * stride] : key / size; }
};
// One batch entry: where its tokens begin (0 unless packed) and how many there are.
struct Sequence {
  std::int64_t batch = 0;  // index into batch strides
  std::int64_t q_begin = 0, k_begin = 0;
  std::int64_t seq_q = 0, seq_k = 0;
  Pages pages{};
};
// CPU tensors only: an element of an int32 tensor of rank 1, and where the row of a page table is.
inline std::int64_t int32_at(const ConstTensor& t, std::int64_t i) {
  return static_cast<const std::int32_t*>(t.data)[i * t.stride[0]];
}
// An element of an int32 or int64 tensor of rank 1.
inline std::int64_t index_at(const ConstTensor& t, std::int64_t i) {
  return t.dtype == DType::i64 ? static_cast<const std::int64_t*>(t.data)[i * t.stride[0]] : int32_at(t, i);
}
inline Pages pages_of(const ConstTensor& table, std::int64_t batch, std::int64_t page_size) {
  const auto* entries = static_cast<const std::int32_t*>(table.data);
  return {entries ? entries + batch * table.stride[0] : entries, table.stride[1], page_size};
}
// CPU tensors only: the lengths between prefix sums, or an Error that says what is wrong with them. of: whose tokens
// they count; by default the q or k that `name` ends in.
std::vector<std::int64_t> lengths_from(std::string_view name, const ConstTensor& cu, std::int64_t total,
                                       std::string_view of = {});
// CPU tensors only: reads cu_seqlens, seqused_k and where the row of page_table is.
Sequence sequence_of(const Problem& problem, const Tensors& arguments, std::int64_t batch);

// True if each call has lengths of its own, up to the problem's seq_q and seq_k.
inline bool has_lengths(const Problem& p) { return p.varlen || p.seqused; }
// CPU tensors only: the longest sequences of a call.
struct Longest {
  std::int64_t seq_q = 0, seq_k = 0;
};
Longest longest_of(const Problem& problem, const Tensors& arguments);
// Throws Error if a bound that the caller gave is too small.
void check_longest(std::string_view bound_name, std::int64_t longest, std::int64_t bound);
// Throws Error unless cu_seqlens, on the CPU, are prefix sums of lengths within seq_q and seq_k.
void check_lengths(const Problem& problem, const Tensors& arguments);

BandMask band_mask(const Problem& problem, std::int64_t seq_q, std::int64_t seq_k);
// A refusal for kernels whose positions are ints, or nothing: ALiBi's distances grow with the band's offset.
std::string why_no_alibi(const Problem& problem, std::int64_t most);

// A refusal for kernels that read k and v of q's dtype or e4m3, or nothing.
std::string why_no_other_keys(const Problem& problem);
// A refusal for kernels that read fp32, fp16 and bf16, k and v as q, or nothing.
std::string why_no_fp8(const Problem& problem);

// Element offsets. `t` is [batch, heads, seq, dim] or packed [total, heads, dim]; lse [batch, heads, seq] or [heads,
// total].
template <class Data>
std::int64_t row_offset(const BasicTensor<Data>& t, std::int64_t batch, std::int64_t head, std::int64_t token) {
  return t.rank == 4 ? batch * t.stride[0] + head * t.stride[1] + token * t.stride[2]
                     : token * t.stride[0] + head * t.stride[1];
}
template <class Data>
std::int64_t row_stride(const BasicTensor<Data>& t) {  // from one token to the next
  return t.rank == 4 ? t.stride[2] : t.stride[0];
}
inline std::int64_t lse_offset(const ConstTensor& lse, std::int64_t batch, std::int64_t head, std::int64_t token) {
  return lse.rank == 3 ? batch * lse.stride[0] + head * lse.stride[1] + token * lse.stride[2]
                       : head * lse.stride[0] + token * lse.stride[1];
}

// Strides of a bias or mask over [batch, heads, rows, keys], 0 where it is broadcast.
Dims broadcast_strides(const ConstTensor& t);

}  // namespace onepass
