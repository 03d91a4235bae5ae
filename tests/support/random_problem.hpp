// Random problems for the tests of the CPU and of devices, drawn by RapidCheck.
#pragma once
#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "check/inputs.hpp"

namespace onepass::test {

inline bool flip() { return *rc::gen::arbitrary<bool>(); }
inline bool rarely() { return *rc::gen::inRange(0, 5) == 4; }
inline std::int64_t among(std::int64_t lo, std::int64_t hi) { return *rc::gen::inRange(lo, hi + 1); }
inline BroadcastDims spread() { return {flip(), flip(), flip(), flip()}; }
inline DType data_type() { return *rc::gen::element(DType::f32, DType::f16, DType::bf16); }
inline std::int64_t length() { return rarely() ? among(0, 2000) : among(0, 150); }

inline void random_lengths(Problem& p) {
  p.varlen = true;
  p.seq_q = p.seq_k = 0;
  for (std::int64_t i = 0; i < p.batch; ++i) {
    p.lengths_q.push_back(among(0, 100));
    p.lengths_k.push_back(length());
    p.seq_q = std::max(p.seq_q, p.lengths_q.back());
    p.seq_k = std::max(p.seq_k, p.lengths_k.back());
  }
  p.total_q = std::accumulate(p.lengths_q.begin(), p.lengths_q.end(), among(0, 3));
  p.total_k = std::accumulate(p.lengths_k.begin(), p.lengths_k.end(), among(0, 3));
}

// K and V as a cache with lengths, pages, or both. If there are too few pages, some are shared.
inline void random_cache(Problem& p) {
  p.lengths_k.clear();
  p.total_k = 0;
  p.seqused = flip();
  if (p.seqused && flip()) return;
  p.page_size = flip() ? among(1, 9) : *rc::gen::element<std::int64_t>(16, 32, 64, 100);
  p.max_pages = (p.seq_k + p.page_size - 1) / p.page_size + (p.seq_k > 0 ? among(0, 2) : 0);
  p.pages = p.batch * p.max_pages + among(0, 3);
  if (rarely()) p.pages = among(1, 1 + p.pages);
}

// Rows with gaps between them, in either order of heads and tokens.
inline Dims random_strides(std::int64_t batch, std::int64_t heads, std::int64_t tokens, std::int64_t dim) {
  const bool tokens_inside = flip();
  const std::int64_t inner = dim + among(0, 9), n = tokens_inside ? tokens : heads;
  const std::int64_t outer = n * inner + among(0, 9), whole = (tokens_inside ? heads : tokens) * outer + among(0, 9);
  return {batch > 1 ? whole : 0, tokens_inside ? outer : inner, tokens_inside ? inner : outer, 1};
}

// A valid problem on the CPU whose oracle takes milliseconds. To be called inside a generator or a property.
inline Problem random_problem(bool with_cache = false) {
  Problem p;
  p.batch = among(1, 3);
  p.heads_kv = among(1, 3);
  p.heads_q = p.heads_kv * among(1, rarely() ? 16 : 4);
  p.seq_q = flip() ? among(1, 8) : among(0, 200);
  p.seq_k = length();
  p.dim_qk = rarely() ? among(1, rarely() ? 512 : 256) : among(1, 80);
  p.dim_v = flip() ? p.dim_qk : among(1, rarely() ? 512 : 130);
  p.dtype = data_type();
  p.out_dtype = rarely() ? DType::f32 : p.dtype;
  p.band.causal = flip();
  p.band.align = *rc::gen::element(Align::top_left, Align::bottom_right, Align::offset);
  if (p.band.align == Align::offset) p.band.offset = rarely() ? among(-2500, 2500) : among(-60, 160);
  if (rarely()) p.band.left = among(0, 300);
  if (rarely()) p.band.right = p.band.causal ? 0 : among(0, 300);
  if (rarely()) p.scale = static_cast<double>(among(1, 100)) / 100;
  if (rarely()) p.softcap = static_cast<float>(among(1, 50));
  if (rarely()) p.bias = BiasSpec{data_type(), spread()};
  if (rarely()) p.bool_mask = spread();
  if (rarely()) {
    p.block_mask = spread();
    if (flip()) p.mask_tile_q = among(1, 130), p.mask_tile_k = among(1, 200);
    if (flip()) p.mask_mod = "(q_index * 7 + k_index * 3) % 5 != 0";
  }
  p.alibi = rarely() && std::abs(p.band.offset) <= 200;  // scores far from 0 have fewer bits behind the point
  p.sinks = rarely();
  if (rarely()) p.dropout_p = static_cast<float>(among(1, 9)) / 10;
  p.dropout_seed = p.dropout_p > 0 && flip();
  p.seed = p.dropout_seed ? 0 : static_cast<std::uint64_t>(among(0, 1000));
  p.want_lse = flip();
  p.want_row_max = flip();
  p.entropy = rarely();
  if (rarely()) random_lengths(p);
  if (with_cache && rarely()) random_cache(p);
  p.batch_invariant = with_cache && rarely();
  flip() ? set_bshd(p) : set_contiguous(p);
  if (!p.varlen && !p.paged() && flip()) {
    p.layout = {};
    p.layout.q = random_strides(p.batch, p.heads_q, p.seq_q, p.dim_qk);
    p.layout.k = random_strides(p.batch, p.heads_kv, p.seq_k, p.dim_qk);
    p.layout.v = random_strides(p.batch, p.heads_kv, p.seq_k, p.dim_v);
    p.layout.out = random_strides(p.batch, p.heads_q, p.seq_q, p.dim_v);
  }
  return p;
}

// A problem with the inputs that are drawn for it.
struct Case {
  Problem problem;
  std::uint64_t seed = 0;
  check::Distribution distribution = check::Distribution::normal;
  check::Placement placement = check::Placement::middle;
};

// Without huge scores for gradients: those cannot be judged.
inline Case random_case(Problem problem) {
  Case c{std::move(problem)};
  c.seed = static_cast<std::uint64_t>(among(0, 1000));
  c.distribution = check::kDistributions[among(0, is_derivative(c.problem.op) ? 2 : 3)];
  c.placement = *rc::gen::element(check::Placement::middle, check::Placement::page_end, check::Placement::page_start);
  return c;
}

}  // namespace onepass::test
