// An append to a cache: its tensors, checked, and where its tokens go.
#pragma once
#include <cstdint>

#include "onepass/append.hpp"
#include "problem/attention/key_value_view.hpp"

namespace onepass {

// The facts that the shapes give.
struct AppendProblem {
  std::int64_t batch = 0, heads_kv = 0, heads_q = 0, dim_qk = 0, dim_v = 0;
  std::int64_t tokens = 0;   // of k_new: batch * seq_new, or total
  std::int64_t seq_new = 0;  // unless packed
  std::int64_t capacity = 0, page_size = 0, pages = 0;
  std::int64_t rotary_dim = 0, positions = 0;
  DType dtype = DType::f32, table_dtype = DType::f32;  // of the data; of cos and sin
  DType cache_dtype = DType::f32;                      // of k and v: the data's or fp8_e4m3
  bool packed = false, rotated = false, interleaved = false;
  Device device{};

  bool paged() const { return page_size > 0; }
};

// Throws Error, with nothing written, unless everything fits: shapes, strides, dtypes, devices, shared memory and, on
// the CPU, the contents of cu_seqlens_q, seqused_k and the used entries of page_table.
AppendProblem append_problem_of(const AppendTensors& tensors, bool interleaved);

// An element of an fp8_e4m3 cache, divided by its factor. The quotient of a finite number saturates, also for a factor
// of 0 or one so small that the quotient overflows. An infinity becomes NaN, because e4m3 has none.
constexpr f8e4m3 divided(float x, float factor) {
  const float y = x == 0.0f ? x : x / factor;
  return from_float<f8e4m3>(y + (x - x));
}

// The tokens of one batch entry, of tensors on the CPU: q_begin and seq_q are those of the new ones, seq_k is how many
// there were before.
Sequence appended_sequence(const AppendProblem& problem, const AppendTensors& tensors, std::int64_t batch);

}  // namespace onepass
