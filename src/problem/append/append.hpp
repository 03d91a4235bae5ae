// An append to a cache: where its tokens go.
#pragma once
#include <cstdint>

#include "onepass/append.hpp"
#include "problem/attention/key_value_view.hpp"

namespace onepass {

Mods validate_append(const Problem& problem);
// Throws Error unless what tensors on the CPU say puts each new token into a place of its own.
void check_append_contents(const Problem& problem, const Tensors& tensors);

Tensors as_tensors(const AppendTensors& tensors);
// cos and sin are the left and the right half of the columns.
void take_cos_sin_cache(Tensors& tensors, const ConstTensor& both);

// An element of an fp8_e4m3 cache, divided by its factor. The quotient of a finite number saturates, also for a factor
// of 0 or one so small that the quotient overflows. An infinity becomes NaN, because e4m3 has none.
constexpr f8e4m3 divided(float x, float factor) {
  const float y = x == 0.0f ? x : x / factor;
  return from_float<f8e4m3>(y + (x - x));
}

// A new token's place in its sequence, which is all of a cache with slots, and its row of cos and sin.
struct NewToken {
  std::int64_t key, position;
  bool skipped() const { return key < 0; }  // only its q counts
};
// CPU tensors only.
inline NewToken new_token(const Tensors& t, const Sequence& s, std::int64_t i) {
  if (!t.slot_mapping.given()) return {s.seq_k + i, s.seq_k + i};
  return {index_at(t.slot_mapping, i), t.positions.given() ? index_at(t.positions, i) : 0};
}

// New tokens of all sequences. A Sequence has them in q_begin and seq_q, and in seq_k how many there were before; with
// slots it has all tokens, and in seq_k all slots.
inline std::int64_t new_tokens(const Problem& p) { return p.varlen ? p.total_q : p.batch * p.seq_q; }
// Those of a sequence that a line describes; 0 if it is not an append.
std::int64_t new_tokens(const Problem& problem, std::int64_t batch);

}  // namespace onepass
