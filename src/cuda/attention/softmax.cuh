// The lazy online softmax on an accumulator fragment of 64 x N scores: a lane holds rows g and g + 8 of its warp's
// sixteen, columns 8 j + 2 t and + 1.
//
// Only a tile's first block finds the row maximum before its exponentials. Later blocks keep the reference (keep()):
// weights may exceed 1, and P, l and O are floating point sharing that factor, so nothing is lost until range is. A
// lane whose sum passes kLazyLimit (or is inf or NaN) sends its warp into the exact step (advance()), which still has
// the scores. This takes the maximum, its shuffles and the rescaling of O off the critical path: 510 instructions a
// block and warp become 343.
#pragma once
#include "algebra/entropy.hpp"
#include "cuda/attention/largest_scores.cuh"

namespace onepass {

// Columns are taken in groups of at most 32, so that a tile's first block can leave out those that no row of the warp
// sees (on the diagonal, half of them).
template <int N>
constexpr int kGroup = N % 16 == 0 ? 16 : N;  // of a lane's scores, two rows each: 2 * kGroup columns

// Far from where fp16 or fp32 end. Near 1 all the same: P is rounded to 16 bits and l is not, so a key that outweighs
// the rest of its row by more than this must be the maximum, whose weight is 1.
constexpr float kRoomExponent = 8.0f, kRoom = 256.0f;

// With bf16, references are 24 above the maximum, in log2 units: weights sum to less than 1, so that no sum of weights
// times finite values overflows. 24 covers 2^14 blocks in which every lane's sum is just below kRoom. Weights below
// 2^-102 of the largest become 0. Sums of fp16 have room, and its weights have none. fp32 has no bits to spare: an
// exponent near -24 is known to 2^-20. That is not enough for an entropy, which does without: rows whose sums overflow
// are computed again.
constexpr bool kLowered =
    features.input == ScalarType::bf16 && features.keys == ScalarType::bf16 && !forward_features.entropy;
constexpr float kLow = kLowered ? 24.0f : 0.0f, kLowUnit = kLowered ? 0x1p-24f : 1.0f;
constexpr float kLazyLimit = kRoom * kLowUnit;
// The same limit for each weight: 24 covers 2^9 blocks of 128 such keys. Rows that overflow are computed again.
constexpr float kLazyExponent = kRoomExponent - kLow;

// A state of weights that were not lowered, and the same LSE.
DEV RowState<float> lifted(const RowState<float>& s, float low) { return {s.m - low, s.l * (1 / kLowUnit)}; }

// A lane's sums of e 2^e for the entropies of its two rows (algebra/entropy.hpp). Where they are not asked for there is
// nothing.
template <bool kAsked>
struct EntropyTerms {
  DEV void open_terms() {}
  template <class Unit, class Reference>
  DEV void move_terms(int, float, float, const Unit&, const Reference&) {}
  template <class Block>
  DEV void add_terms(const Block&) {}
  DEV void set_terms(int, float) {}
  DEV float quad_terms(int) const { return 0.0f; }
  DEV float quad_entropy(int, float) const { return 0.0f; }
};
template <>
struct EntropyTerms<true> {
  float terms[2] = {0.0f, 0.0f};

  DEV void open_terms() { terms[0] = terms[1] = 0.0f; }
  // Row i's reference was m_before; l: its sum of weights, already rescaled.
  template <class Unit, class Reference>
  DEV void move_terms(int i, float l, float m_before, const Unit& unit, const Reference& r) {
    terms[i] = unit.moved_terms(terms[i], l, m_before, r);
  }
  template <class Block>
  DEV void add_terms(const Block& block) {
    terms[0] += block.of[0], terms[1] += block.of[1];
  }
  DEV void set_terms(int i, float sum) { terms[i] = sum; }
  // The sum of row i, and its entropy, from all lanes of the quad; l: their sum of weights.
  DEV float quad_terms(int i) const { return quad_sum(terms[i]); }
  DEV float quad_entropy(int i, float l) const { return entropy(l, quad_terms(i)); }
};
// The addend of a part of a row's keys in its terms, which refer to r: the part's own refer to m. The part's weights
// sum to l, and it weighs `weight`.
template <class Unit, class Reference>
DEV float terms_of_part(const Unit& unit, Reference r, float m, float l, float terms, float weight) {
  if constexpr (!forward_features.entropy) return 0.0f;
  r.alpha = weight;
  return unit.moved_terms(terms, l * weight, m, r);
}
// A block's part of them. kSafe: an exponent of -infinity counts as a weight of 0. Otherwise it makes a NaN, and the
// block is to be taken again: that saves an instruction a score where few blocks have hidden scores.
template <bool kAsked, bool kSafe>
struct BlockTerms {
  DEV void add(int, float, float) {}
  DEV bool right() const { return true; }
};
template <bool kSafe>
struct BlockTerms<true, kSafe> {
  float of[2] = {0.0f, 0.0f};
  DEV void add(int i, float weight, float e) { of[i] = fmaf(weight, kSafe ? exponent(e) : e, of[i]); }
  DEV bool right() const { return kSafe || (of[0] == of[0] && of[1] == of[1]); }
};
using SafeTerms = BlockTerms<forward_features.entropy, true>;
// Blocks behind a row's first one have hidden scores by the band alone, if any, and then few have.
constexpr bool kHidesMany =
    features.masks() || features.bias != ScalarType::none || features.score_mod || features.tree;
using LazyTerms = BlockTerms<forward_features.entropy, kHidesMany>;

// A lane's part of its two rows. `state` makes the LSE; O is divided by `norm`: the same sum, but with `kRounded` of
// the weights as they are multiplied with V, so that a row of one key gives that key's value exactly. A 16-bit output
// hides the difference (2^-9 of a value), an fp32 partial result does not.
struct LaneRows : LargestScores<forward_features.row_max>, EntropyTerms<forward_features.entropy> {
  RowState<float> state[2];
  float norm[2];
};

// The two units that scores come in. Products of q and k lack one factor; m is in log2 units then, rounded as the
// scores of an exact step are, so that the maximum's weight is 1. Rounding to zero keeps it finite. A row that ends
// beyond kFusable is computed again in the scores' own unit: plain kernels pay for such rows with a comparison at their
// end.
struct Products {
  float factor, unit;  // to log2 units, to natural ones
  DEV Rescale<float> open(RowState<float>& s, float tile_max) const { return advance(s = {}, tile_max); }
  DEV Rescale<float> advance(RowState<float>& s, float tile_max) const {
    return onepass::advance(s, __fmul_rz(tile_max, factor) + kLow);
  }
  DEV Rescale<float> keep(const RowState<float>& s) const { return onepass::keep(s); }
  DEV bool lazy(const LaneRows&) const { return true; }
  DEV bool lazy(const RowState<float>&) const { return true; }
  // The exponents of weights, and the weights.
  DEV float exact_exponent(float s, const Rescale<float>& r) const { return log2_weight(__fmul_rz(s, factor), r); }
  DEV float lazy_exponent(float s, const Rescale<float>& r) const { return fused_log2_weight(s, factor, r); }
  DEV float exact_weight(float s, const Rescale<float>& r) const { return weight(__fmul_rz(s, factor), r); }
  DEV float lazy_weight(float s, const Rescale<float>& r) const { return fused_weight(s, factor, r); }
  DEV float moved_terms(float t, float l, float m_before, const Rescale<float>& r) const {
    return onepass::moved_terms(t, l, m_before, r);
  }
  // Advances `s` to the larger of its own maximum and m, and returns its rescaling.
  DEV Rescale<float> meet(RowState<float>& s, float m) const { return onepass::advance(s, m); }
  DEV float part_weight(float m, const Rescale<float>& r) const { return weight(m, r); }
  DEV bool right(const RowState<float>& s) const {
    return !(fabsf(s.m) > static_cast<float>(kFusable) && s.m != kNegInf);
  }
  DEV RowState<float> lifted(const RowState<float>& s) const { return onepass::lifted(s, kLow); }
  DEV RowState<float> natural(const RowState<float>& s) const { return {s.m * static_cast<float>(kLn2), s.l}; }
  DEV Final<float> final(const RowState<float>& s) const { return finalize(s); }
};
// Scores that a bias, a cap, slopes or a score_mod have been at: biases of -3e38 are ordinary here (masks), so m has
// their unit, and a reference beyond kFusable is taken by exact steps.
struct Transformed {
  float factor, unit;
  DEV float low() const { return kLowered ? kLow / factor : 0.0f; }  // in the scores' unit
  DEV Step<float> open(RowState<float>& s, float tile_max) const { return onepass::open(s, tile_max + low(), factor); }
  DEV Step<float> advance(RowState<float>& s, float tile_max) const {
    return onepass::advance(s, tile_max + low(), factor);
  }
  DEV Step<float> keep(const RowState<float>& s) const { return onepass::keep(s, factor); }
  DEV bool lazy(const LaneRows& rows) const {
    return fmaxf(fabsf(rows.state[0].m), fabsf(rows.state[1].m)) * factor <= static_cast<float>(kFusable);
  }
  DEV bool lazy(const RowState<float>& s) const { return fabsf(s.m) * factor <= static_cast<float>(kFusable); }
  DEV float exact_exponent(float s, const Step<float>& r) const { return log2_weight(s, factor, r); }
  DEV float lazy_exponent(float s, const Step<float>& r) const { return fused_log2_weight(s, factor, r); }
  DEV float exact_weight(float s, const Step<float>& r) const { return weight(s, factor, r); }
  DEV float lazy_weight(float s, const Step<float>& r) const { return fused_weight(s, factor, r); }
  DEV float moved_terms(float t, float l, float m_before, const Step<float>& r) const {
    return onepass::moved_terms(t, l, m_before, factor, r);
  }
  DEV Step<float> meet(RowState<float>& s, float m) const { return onepass::advance(s, m, factor); }
  DEV float part_weight(float m, const Step<float>& r) const { return weight(m, factor, r); }
  DEV bool right(const RowState<float>&) const { return true; }
  DEV RowState<float> lifted(const RowState<float>& s) const { return onepass::lifted(s, low()); }
  DEV RowState<float> natural(const RowState<float>& s) const { return to_natural(s, factor, unit); }
  DEV Final<float> final(const RowState<float>& s) const { return finalize_natural(natural(s)); }
};

template <int N>
DEV void row_max(const float (&s)[N], i32 columns, float (&tile_max)[2]) {  // of the first `columns` columns
  float part[4] = {kNegInf, kNegInf, kNegInf, kNegInf};
#pragma unroll
  for (int g = 0; g < N; g += kGroup<N>) {
    if (2 * g >= columns) break;
#pragma unroll
    for (int j = g; j < g + kGroup<N>; j += 4) {
      part[j / 4 % 2 * 2] = fmaxf(part[j / 4 % 2 * 2], fmaxf(s[j], s[j + 1]));
      part[j / 4 % 2 * 2 + 1] = fmaxf(part[j / 4 % 2 * 2 + 1], fmaxf(s[j + 2], s[j + 3]));
    }
  }
  tile_max[0] = quad_max(fmaxf(part[0], part[2]));
  tile_max[1] = quad_max(fmaxf(part[1], part[3]));
}

// The A operand of P V: the weights of a fragment, packed as the products take them.
template <class Element, int N>
using Operand = typename Element::Packed[N / Element::kPacked];

// Four weights, elements j .. j + 3, where they belong in an operand.
template <class Element, int N>
DEV void pack_four(int j, const float (&w)[4], Operand<Element, N>& p) {
  if constexpr (Element::kPacked == 2) {
    p[j / 2] = Element::pack(w[0], w[1]);
    p[j / 2 + 1] = Element::pack(w[2], w[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[j + i] = w[i];
  }
}

// put(j, w): weights of elements j .. j + 3; sum = the lane's sums of them, before dropout. Groups from `columns` on
// are not read; their weights are 0. exponent_of(s, row): of a weight.
template <class Element, bool kRounded, class Terms, class Drop, class Put, class ExponentOf, int N>
DEV void exponentiate(const float (&s)[N], const Put& put, const ExponentOf& exponent_of, float (&sum)[2],
                      float (&norm)[2], Terms& terms, const Drop& drop, i32 columns = 2 * N) {
  float part[2][2] = {}, rounded[2] = {};
#pragma unroll
  for (int g = 0; g < N; g += kGroup<N>) {
    if (2 * g >= columns) {
#pragma unroll
      for (int j = g; j < g + kGroup<N>; j += 4) put(j, {});
      continue;
    }
#pragma unroll
    for (int j = g; j < g + kGroup<N>; j += 4) {  // two columns of row g, the same two of row g + 8
      float w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float e = exponent_of(s[j + i], i / 2);
        w[i] = factor_of(e);
        part[i / 2][i % 2] += w[i];
        terms.add(i / 2, w[i], e);
        if constexpr (kRounded) rounded[i / 2] += Element::unpack(Element::round(w[i]));
      }
      drop(j, w);
      put(j, w);
    }
  }
  sum[0] = part[0][0] + part[0][1];
  sum[1] = part[1][0] + part[1][1];
  norm[0] = kRounded ? rounded[0] : sum[0];
  norm[1] = kRounded ? rounded[1] : sum[1];
}
struct KeepAll {  // no dropout
  DEV void operator()(int, float (&)[4]) const {}
};

// A tile's first block; put as exponentiate has it, and s itself may be what it changes.
template <class Element, bool kRounded, class Unit, class Drop, class Put, int N>
DEV void softmax_first(const float (&s)[N], const Put& put, LaneRows& rows, const Unit& unit, const Drop& drop,
                       i32 columns) {
  float sum[2], tile_max[2];
  row_max(s, columns, tile_max);
  const decltype(unit.keep({})) r[2] = {unit.open(rows.state[0], tile_max[0]), unit.open(rows.state[1], tile_max[1])};
  const auto exponent_of = [&](float x, int row) { return unit.exact_exponent(x, r[row]); };
  SafeTerms terms;
  rows.forget();
  rows.open_terms();
  rows.see_maxima(tile_max, unit.unit);
  exponentiate<Element, kRounded>(s, put, exponent_of, sum, rows.norm, terms, drop, columns);
  absorb(rows.state[0], sum[0]);
  absorb(rows.state[1], sum[1]);
  rows.add_terms(terms);
}

template <class Element, bool kRounded, class Unit, class Drop, int N, int M>
DEV void softmax_exact(const float (&s)[N], Operand<Element, N>& p, float (&o)[M], LaneRows& rows, const Unit& unit,
                       const Drop& drop) {
  float sum[2], norm[2], tile_max[2];
  row_max(s, 2 * N, tile_max);
  [[maybe_unused]] const float before[2] = {rows.state[0].m, rows.state[1].m};
  const decltype(unit.keep({})) r[2] = {unit.advance(rows.state[0], tile_max[0]),
                                        unit.advance(rows.state[1], tile_max[1])};
  rows.see_maxima(tile_max, unit.unit);
  multiply_two_rows(o, r[0].alpha, r[1].alpha);
  const auto put = [&](int j, const float(&w)[4]) { pack_four<Element, N>(j, w, p); };
  const auto exponent_of = [&](float x, int row) { return unit.exact_exponent(x, r[row]); };
  SafeTerms terms;
  exponentiate<Element, kRounded>(s, put, exponent_of, sum, norm, terms, drop);
#pragma unroll
  for (int i = 0; i < 2; ++i) rows.move_terms(i, rows.state[i].l, before[i], unit, r[i]);
  rows.add_terms(terms);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    absorb(rows.state[i], sum[i]);
    if constexpr (kRounded) rows.norm[i] = rows.norm[i] * r[i].alpha + norm[i];
  }
}

// False, with nothing changed but p, for the whole warp if a sum or a reference has left its
// range, or the terms of an entropy are not right: then softmax_exact is due. A row that has seen no key yet (m = -inf)
// yields inf or NaN here and so asks for it by itself. The largest scores are the caller's. kFits: they have told that
// the step is right (fits_lazily), which is not asked again.
template <class Element, bool kRounded, bool kFits = false, class Unit, class Drop, int N>
DEV bool softmax_lazy(const float (&s)[N], Operand<Element, N>& p, LaneRows& rows, const Unit& unit, const Drop& drop,
                      float limit = kLazyLimit) {
  float sum[2], norm[2];
  const decltype(unit.keep({})) r[2] = {unit.keep(rows.state[0]), unit.keep(rows.state[1])};
  const auto put = [&](int j, const float(&w)[4]) { pack_four<Element, N>(j, w, p); };
  const auto exponent_of = [&](float x, int row) { return unit.lazy_exponent(x, r[row]); };
  LazyTerms terms;
  exponentiate<Element, kRounded>(s, put, exponent_of, sum, norm, terms, drop);
  if constexpr (!kFits)
    if (__any_sync(0xffffffffu, !unit.lazy(rows) || !(sum[0] + sum[1] <= limit) || !terms.right())) return false;
  rows.add_terms(terms);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    absorb(rows.state[i], sum[i]);
    if constexpr (kRounded) rows.norm[i] += norm[i];
  }
  return true;
}

// True if a lazy step is right in a row whose largest score is x, in the unit of the scores.
template <class Unit>
DEV bool fits_lazily(const RowState<float>& s, float x, const Unit& unit) {
  return unit.lazy(s) && unit.lazy_exponent(x, unit.keep(s)) <= kLazyExponent;
}

// One result per row (Problem::batch_invariant): a block in which each row takes the lazy or the exact step by its own
// sum, whatever its neighbours in the warp do. exact: all take the exact one.
template <class Element, bool kRounded, class Unit, class Drop, int N, int M>
DEV void softmax_by_row(const float (&s)[N], Operand<Element, N>& p, float (&o)[M], LaneRows& rows, const Unit& unit,
                        const Drop& drop, bool exact, float limit = kLazyLimit) {
  using Reference = decltype(unit.keep({}));
  float sum[2], norm[2], tile_max[2];
  Reference r[2] = {unit.keep(rows.state[0]), unit.keep(rows.state[1])};
  bool keeps[2] = {false, false};
  const auto put = [&](int j, const float(&w)[4]) { pack_four<Element, N>(j, w, p); };
  const auto take = [&](const SafeTerms& terms) {
    rows.add_terms(terms);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      absorb(rows.state[i], sum[i]);
      if constexpr (kRounded) rows.norm[i] = rows.norm[i] * r[i].alpha + norm[i];
    }
  };
  if (!exact) {
    const auto exponent_of = [&](float x, int row) { return unit.lazy_exponent(x, r[row]); };
    SafeTerms terms;
    exponentiate<Element, kRounded>(s, put, exponent_of, sum, norm, terms, drop);
#pragma unroll
    for (int i = 0; i < 2; ++i) keeps[i] = quad_all(unit.lazy(rows.state[i]) && sum[i] <= limit);
    if (__all_sync(0xffffffffu, keeps[0] && keeps[1])) return take(terms);
  }
  row_max(s, 2 * N, tile_max);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    RowState<float> advanced = rows.state[i];
    const Reference reference = unit.advance(advanced, tile_max[i]);  // by all lanes
    if (keeps[i]) continue;
    rows.move_terms(i, advanced.l, rows.state[i].m, unit, reference);
    rows.state[i] = advanced, r[i] = reference;
  }
  multiply_two_rows(o, r[0].alpha, r[1].alpha);
  const auto exponent_of = [&](float x, int row) {
    return keeps[row] ? unit.lazy_exponent(x, r[row]) : unit.exact_exponent(x, r[row]);
  };
  SafeTerms terms;
  exponentiate<Element, kRounded>(s, put, exponent_of, sum, norm, terms, drop);
  take(terms);
}

template <class Element, bool kRounded, class Unit, class Drop, int N, int M>
DEV void softmax_next(const float (&s)[N], Operand<Element, N>& p, float (&o)[M], LaneRows& rows, const Unit& unit,
                      const Drop& drop) {
  if (!softmax_lazy<Element, kRounded>(s, p, rows, unit, drop))
    softmax_exact<Element, kRounded>(s, p, o, rows, unit, drop);
}

}  // namespace onepass
