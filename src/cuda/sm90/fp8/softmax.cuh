// The lazy online softmax of softmax.cuh for weights of e4m3, which hold 2^-9 to 448.
//
// Weights are multiplied by 32: the row's maximum is exactly representable then, and has room to be exceeded 14 times
// before a lazy step fails. The bound is the largest sum of eight weights of a lane, which l needs anyway. An integer
// power of 2: at 2^5.5 a key that outweighs its row would be 3 % off. 2^6 sends 35 % of the rows of N(0, 1) scores to
// the exact step once, 2^5 6 %.
#pragma once
#include "cuda/attention/softmax.cuh"

namespace onepass {

constexpr float kHead = 5.0f, kHeadFactor = 32.0f, kLargestWeight = 448.0f;

// Weights that are 2^by as large.
DEV Rescale<float> raised(Rescale<float> r, float by) {
  r.m_ref -= by;
  return r;
}
DEV Step<float> raised(Step<float> r, float by) {
  r.after += by;
  return r;
}

// p: the A operand of P V, keys permuted as transpose.cuh has them. Returns the largest sum of eight, or NaN.
template <class WeightOf, int N, int W>
DEV float exponentiate_e4m3(const float (&s)[N], u32 (&p)[W], const WeightOf& weight_of, float (&sum)[2]) {
  float top = 0.0f;
  sum[0] = sum[1] = 0.0f;
#pragma unroll
  for (int k = 0; k < N; k += 16) {
    float w[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) w[j] = weight_of(s[k + j], j >> 1 & 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const e = w + 2 * i;
      p[k / 4 + i] = pack_e4m3(e[0], e[1], e[4], e[5]);
      p[k / 4 + 2 + i] = pack_e4m3(e[8], e[9], e[12], e[13]);
      const float eight = ((e[0] + e[1]) + (e[4] + e[5])) + ((e[8] + e[9]) + (e[12] + e[13]));
      top = max_or_nan(top, eight);
      sum[i] += eight;
    }
  }
  return top;
}

// The same in two steps: the weights into s, while the operand is read by products under way, and then to the operand.
template <class WeightOf, int N>
DEV void exponentiate_in_place(float (&s)[N], const WeightOf& weight_of, float (&sum)[2]) {
  sum[0] = sum[1] = 0.0f;
  each(s, [&](int j, float& x) {
    x = weight_of(x, row_of_element(j));
    sum[row_of_element(j)] += x;
  });
}
template <int N, int W>
DEV void pack_e4m3_operand(const float (&s)[N], u32 (&p)[W]) {
#pragma unroll
  for (int k = 0; k < N; k += 8) {  // p[4 i + 2 h + r]: 8-column groups 4 i + 2 h and the next, row r
#pragma unroll
    for (int r = 0; r < 2; ++r)
      p[k / 4 + r] = pack_e4m3(s[k + 2 * r], s[k + 2 * r + 1], s[k + 2 * r + 4], s[k + 2 * r + 5]);
  }
}

// V's scale of a block, applied to its weights: 2^up, which is not in l. Compiled out without factors of blocks.
template <bool kBlockScales>
struct Raise {
  float up;
  DEV float by() const { return kBlockScales ? kHead + up : kHead; }
  DEV void absorb(RowState<float> (&rows)[2], const float (&sum)[2]) const {
    const float undo = kBlockScales ? factor_of(-up) : 1.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) onepass::absorb(rows[i], kBlockScales ? sum[i] * undo : sum[i]);
  }
};

// kInPlace: the weights stay in s.
template <bool kInPlace, class Unit, class Up, int N, int W>
DEV void softmax_first_e4m3(float (&s)[N], u32 (&p)[W], LaneRows& rows, const Unit& unit, const Up& up) {
  float sum[2], top[2];
  row_max(s, 2 * N, top);
  const decltype(unit.keep({})) r[2] = {raised(unit.open(rows.state[0], top[0]), up.by()),
                                        raised(unit.open(rows.state[1], top[1]), up.by())};
  rows.forget();
  rows.see_maxima(top, unit.unit);
  const auto weight_of = [&](float x, int row) { return unit.exact_weight(x, r[row]); };
  if constexpr (kInPlace)
    exponentiate_in_place(s, weight_of, sum);
  else
    exponentiate_e4m3(s, p, weight_of, sum);
  up.absorb(rows.state, sum);
}

// o: what is summed now; all: what was before it (kPromoted), which the step rescales too.
template <bool kPromoted, class Unit, class Up, int N, int W, int M, int L>
DEV void softmax_next_e4m3(const float (&s)[N], u32 (&p)[W], float (&o)[M], float (&all)[L], LaneRows& rows,
                           const Unit& unit, const Up& up) {
  float sum[2];
  {
    const decltype(unit.keep({})) r[2] = {raised(unit.keep(rows.state[0]), up.by()),
                                          raised(unit.keep(rows.state[1]), up.by())};
    const float top = exponentiate_e4m3(s, p, [&](float x, int row) { return unit.lazy_weight(x, r[row]); }, sum);
    if (!__any_sync(0xffffffffu, !unit.lazy(rows) || !(top <= kLargestWeight))) return up.absorb(rows.state, sum);
  }
  float top[2];
  row_max(s, 2 * N, top);
  decltype(unit.keep({})) r[2] = {unit.advance(rows.state[0], top[0]), unit.advance(rows.state[1], top[1])};
  multiply_two_rows(o, r[0].alpha, r[1].alpha);
  if constexpr (kPromoted) multiply_two_rows(all, r[0].alpha, r[1].alpha);
  r[0] = raised(r[0], up.by()), r[1] = raised(r[1], up.by());
  exponentiate_e4m3(s, p, [&](float x, int row) { return unit.exact_weight(x, r[row]); }, sum);
  up.absorb(rows.state, sum);
}

}  // namespace onepass
