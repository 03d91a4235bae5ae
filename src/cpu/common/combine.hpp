// The end of every CPU kernel: a row's partial states over key ranges become its output and LSE.
//
// Kernels that cut the keys (src/algebra/split.hpp) leave a partial per row and split here; kernels that do not, hand
// the one state they have to finalize_row. Either way the states are joined in index order, the sink joins once, at the
// end, and the row is normalised, converted and written.
#pragma once
#include <cstdint>

#include "algebra/scalar.hpp"
#include "base/workspace.hpp"
#include "cpu/common/score_unit.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::cpu {

inline constexpr std::int64_t kMostValueDims = 512;

// m has the unit of the kernel's scores; O is unnormalised.
struct Partials {
  std::int64_t splits = 1, dim_v = 0;
  RowState<float>* state = nullptr;  // [rows][splits]
  float* out = nullptr;              // [rows][splits][dim_v]
  float* most = nullptr;             // [rows][splits]: the largest scores, if asked for where m may be unified_max
  float* entropy = nullptr;          // [rows][splits]: the entropies, if asked for

  RowState<float>& state_of(std::int64_t row, std::int64_t split) const { return state[row * splits + split]; }
  float* out_of(std::int64_t row, std::int64_t split) const { return out + (row * splits + split) * dim_v; }
};
Partials book_partials(Workspace& workspace, const Problem& problem, std::int64_t splits);

// A row's state over earlier splits joined with that over the next one; what their O is to be multiplied by.
Merged<float> join_split(const RowState<float>& earlier, const RowState<float>& next, float to_log2);

// The row of Partials that belongs to an output row: [batch][heads_q][seq_q], packed [heads_q][total_q].
std::int64_t partial_row(const Problem& problem, const Sequence& seq, std::int64_t head, std::int64_t token);

// The entropy of a row whose keys have this one: with the sink, at least 0. keys: their state in natural units.
float finished_entropy(const Problem& problem, const RowState<float>& keys, float entropy, float sink);

// Joins `splits` states and writes out[.., head, token, :], the LSE, the largest score and the entropy. `out` is
// [splits][dim_v]. most: [splits], the largest scores; null: they are the states' m. entropies: [splits], if asked for.
void finalize_row(const Problem& problem, const Tensors& arguments, const Sequence& seq, std::int64_t head,
                  std::int64_t token, const RowState<float>* states, const float* out, std::int64_t splits,
                  const ScoreUnit& unit, const float* most = nullptr, const float* entropies = nullptr);

// finalize_row for every row of the problem; every state must have been written (m = -inf, l = 0 if it saw no key; its
// O is not read then).
void combine(const Problem& problem, const Tensors& arguments, const Partials& partials, const ScoreUnit& unit,
             Executor& executor);

}  // namespace onepass::cpu
