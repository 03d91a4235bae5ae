// The online softmax of a fragment whose weights P also multiply the derivatives of the scores: X = P dS. Both are left
// operands of the next products. l = sum P and mu = sum X refer to the row's reference as O and its derivative do, so
// that alpha rescales all of them.
#pragma once
#include "cuda/attention/epilogue.cuh"
#include "cuda/jvp/scores.cuh"

namespace onepass::cuda::jvp {

// A lane's part of its two rows.
struct JvpRows {
  LaneRows weights;
  float mu[2] = {0.0f, 0.0f};
};

struct BlockSums {
  float l[2], norm[2], mu[2];  // norm: as LaneRows has it
};

// weight_of(s, row). Dropout takes a pair out of both operands, and out of no sum.
template <class WeightOf, class Drop, int N>
DEV BlockSums exponentiate_both(const float (&s)[N], const float (&ds)[N], Operand<Element, N>& w,
                                Operand<Element, N>& x, const WeightOf& weight_of, const Drop& drop) {
  float l[2][2] = {}, mu[2][2] = {}, rounded[2] = {};
#pragma unroll
  for (int j = 0; j < N; j += 4) {
    float p[4], moved[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[i] = weight_of(s[j + i], i / 2);
      moved[i] = p[i] * ds[j + i];
      l[i / 2][i % 2] += p[i];
      mu[i / 2][i % 2] += moved[i];
      if constexpr (kRoundedSums) rounded[i / 2] += Element::unpack(Element::round(p[i]));
    }
    if constexpr (features.dropout) {
      float kept[4] = {1.0f, 1.0f, 1.0f, 1.0f};
      drop(j, kept);
#pragma unroll
      for (int i = 0; i < 4; ++i) p[i] *= kept[i], moved[i] *= kept[i];
    }
    pack_four<Element, N>(j, p, w);
    pack_four<Element, N>(j, moved, x);
  }
  BlockSums sums;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sums.l[i] = l[i][0] + l[i][1];
    sums.norm[i] = kRoundedSums ? rounded[i] : sums.l[i];
    sums.mu[i] = mu[i][0] + mu[i][1];
  }
  return sums;
}

// True for the whole warp if the largest scores tell that softmax_kept is right. A row that has seen no key yet, or a
// NaN, says no.
template <class Unit, int N>
DEV bool fits_lazily(const float (&s)[N], const JvpRows& rows, const Unit& unit) {
  float most[2] = {kNegInf, kNegInf};
  each(s, [&](int j, const float& x) { most[row_of_element(j)] = fmaxf(most[row_of_element(j)], x); });
  return __all_sync(0xffffffffu, onepass::fits_lazily(rows.weights.state[0], most[0], unit) &&
                                     onepass::fits_lazily(rows.weights.state[1], most[1], unit));
}

// The reference stays. False, with nothing changed but w and x, for the whole warp if a sum or a reference has left its
// range: then softmax_moved is due. A row that has seen no key yet asks for it by itself. kFits: fits_lazily has told
// that the step is right, which is not asked again.
template <bool kFits = false, class Unit, class Drop, int N>
DEV bool softmax_kept(const float (&s)[N], const float (&ds)[N], Operand<Element, N>& w, Operand<Element, N>& x,
                      JvpRows& rows, const Unit& unit, const Drop& drop) {
  const decltype(unit.keep({})) r[2] = {unit.keep(rows.weights.state[0]), unit.keep(rows.weights.state[1])};
  const auto weight_of = [&](float score, int row) { return unit.lazy_weight(score, r[row]); };
  const BlockSums sums = exponentiate_both(s, ds, w, x, weight_of, drop);
  if constexpr (!kFits)
    if (__any_sync(0xffffffffu, !unit.lazy(rows.weights) || !(sums.l[0] + sums.l[1] <= kLazyLimit))) return false;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    absorb(rows.weights.state[i], sums.l[i]);
    if constexpr (kRoundedSums) rows.weights.norm[i] += sums.norm[i];
    rows.mu[i] += sums.mu[i];
  }
  return true;
}

// The reference moves to the block's maximum, and what has been added up so far with it.
template <class Unit, class Drop, int N, int M>
DEV void softmax_moved(const float (&s)[N], const float (&ds)[N], Operand<Element, N>& w, Operand<Element, N>& x,
                       float (&o)[M], float (&t)[M], JvpRows& rows, const Unit& unit, const Drop& drop) {
  float tile_max[2];
  row_max(s, 2 * N, tile_max);
  const decltype(unit.keep({})) r[2] = {unit.advance(rows.weights.state[0], tile_max[0]),
                                        unit.advance(rows.weights.state[1], tile_max[1])};
  multiply_two_rows(o, r[0].alpha, r[1].alpha);
  multiply_two_rows(t, r[0].alpha, r[1].alpha);
  const auto weight_of = [&](float score, int row) { return unit.exact_weight(score, r[row]); };
  const BlockSums sums = exponentiate_both(s, ds, w, x, weight_of, drop);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    absorb(rows.weights.state[i], sums.l[i]);
    if constexpr (kRoundedSums) rows.weights.norm[i] = rows.weights.norm[i] * r[i].alpha + sums.norm[i];
    rows.mu[i] = rows.mu[i] * r[i].alpha + sums.mu[i];
  }
}

}  // namespace onepass::cuda::jvp
