// An append to a cache: where its tokens go.
#pragma once
#include <cstdint>

#include "onepass/append.hpp"
#include "problem/attention/key_value_view.hpp"

namespace onepass {

Tensors as_tensors(const AppendTensors& tensors);

// An element of an fp8_e4m3 cache, divided by its factor. The quotient of a finite number saturates, also for a factor
// of 0 or one so small that the quotient overflows. An infinity becomes NaN, because e4m3 has none.
constexpr f8e4m3 divided(float x, float factor) {
  const float y = x == 0.0f ? x : x / factor;
  return from_float<f8e4m3>(y + (x - x));
}

// New tokens of all sequences. A Sequence has them in q_begin and seq_q, and in seq_k how many there were before.
inline std::int64_t new_tokens(const Problem& p) { return p.varlen ? p.total_q : p.batch * p.seq_q; }
// Those of a sequence that a line describes; 0 if it is not an append.
std::int64_t new_tokens(const Problem& problem, std::int64_t batch);

}  // namespace onepass
