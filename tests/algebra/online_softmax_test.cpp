// The algebra against the float64 two-pass algorithm: any tiling, any order, any tree of merges, any unit of the
// scores.
#include "algebra/online_softmax.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "algebra/scalar.hpp"

namespace onepass {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Key {
  double score, value;  // score in log2 units
};
struct Row {
  double out, lse;
};
std::ostream& operator<<(std::ostream& s, const Key& k) { return s << "(" << k.score << ", " << k.value << ")"; }

Row two_pass(const std::vector<Key>& keys, double sink = -kInf) {
  double m = -kInf, l = 0, o = 0;
  for (const Key& k : keys) m = std::isnan(k.score) ? k.score : std::max(m, k.score);
  const double top = std::max(m, sink);
  if (top == -kInf) return {0, -kInf};
  for (const Key& k : keys) {
    l += std::exp2(k.score - top);
    o += std::exp2(k.score - top) * k.value;
  }
  l += std::exp2(sink - top);
  return {o / l, (top + std::log2(l)) * kLn2};
}

template <class T>
struct State {
  RowState<T> row;
  T o = 0;
};

// Scores in log2 units, or (factor > 0) in a unit of their own.
template <class T>
void visit(State<T>& s, const Key* from, const Key* to, T factor = 0) {
  T top = Arith<T>::neg_inf(), sum = 0;
  for (const Key* k = from; k < to; ++k) top = Arith<T>::max(top, static_cast<T>(k->score));
  const auto take = [&](const auto& r, const auto& weigh) {
    s.o *= r.alpha;
    for (const Key* k = from; k < to; ++k) {
      const T w = weigh(static_cast<T>(k->score), r);
      sum += w;
      s.o += w * static_cast<T>(k->value);
    }
  };
  if (factor == 0)
    take(advance(s.row, top), [](T score, const Rescale<T>& r) { return weight(score, r); });
  else
    take(advance(s.row, top, factor), [&](T score, const Step<T>& r) { return weight(score, factor, r); });
  absorb(s.row, sum);
}

template <class T>
State<T> joined(const State<T>& a, const State<T>& b, T factor = 0) {
  const Merged<T> m = factor == 0 ? merge(a.row, b.row) : merge(a.row, b.row, factor);
  return {m.state, a.o * m.alpha_a + b.o * m.alpha_b};
}

template <class T>
Row finished(const State<T>& s, T factor = 0) {
  const Final<T> f =
      factor == 0 ? finalize(s.row) : finalize_natural(to_natural(s.row, factor, static_cast<T>(factor / kLog2e)));
  return {static_cast<double>(s.o * f.inv_l), static_cast<double>(f.lse)};
}

// Scores of every kind: ordinary, spread wide, huge, equal, -inf.
rc::Gen<std::vector<Key>> keys() {
  const auto number = [](double lo, double hi) {
    return rc::gen::map(rc::gen::inRange(0, 1 << 20), [=](int n) { return lo + (hi - lo) * n / (1 << 20); });
  };
  const auto score = rc::gen::weightedOneOf<double>({{8, number(-8, 8)},
                                                     {4, number(-100, 100)},
                                                     {1, number(-1e5, 1e5)},
                                                     {2, rc::gen::just(3.0)},
                                                     {1, rc::gen::just(-9e4)},
                                                     {2, rc::gen::just(-kInf)}});
  return rc::gen::container<std::vector<Key>>(rc::gen::construct<Key>(score, number(-1, 3)));
}

// A random binary tree over the runs of a random tiling, each run visited tile by tile.
template <class T>
State<T> any_tree(const std::vector<Key>& k, std::size_t from, std::size_t to, T factor = 0) {
  const int choice = *rc::gen::inRange(0, 3);
  if (choice == 0 || to - from < 2) {
    State<T> s;
    while (from < to) {
      const std::size_t end = from + *rc::gen::inRange<std::size_t>(1, to - from + 1);
      visit(s, k.data() + from, k.data() + end, factor);
      from = end;
    }
    if (*rc::gen::arbitrary<bool>()) visit(s, k.data(), k.data(), factor);  // an empty tile changes nothing
    return s;
  }
  const std::size_t cut = *rc::gen::inRange(from, to + 1);
  const State<T> a = any_tree<T>(k, from, cut, factor), b = any_tree<T>(k, cut, to, factor);
  return choice == 1 ? joined(a, b, factor) : joined(b, a, factor);
}

void expect_equal(const Row& got, const Row& expected, double tolerance) {
  RC_ASSERT(std::isnan(got.lse) == std::isnan(expected.lse));
  RC_ASSERT(std::isnan(got.out) == std::isnan(expected.out));
  if (std::isnan(expected.lse)) return;
  if (std::isinf(expected.lse)) {
    RC_ASSERT(got.lse == expected.lse);
    RC_ASSERT(got.out == 0.0);
    return;
  }
  RC_ASSERT(std::abs(got.out - expected.out) <= tolerance);
  RC_ASSERT(std::abs(got.lse - expected.lse) <= tolerance * (1 + std::abs(expected.lse)));
}

RC_GTEST_PROP(OnlineSoftmax, AnyTreeEqualsTwoPass, ()) {
  const auto k = *keys();
  expect_equal(finished(any_tree<double>(k, 0, k.size())), two_pass(k), 1e-12);
}
RC_GTEST_PROP(OnlineSoftmax, InFloat, ()) {
  auto k = *keys();
  for (Key& key : k) key.score = static_cast<float>(key.score);
  expect_equal(finished(any_tree<float>(k, 0, k.size())), two_pass(k), 1e-5);
}

// Scores of all magnitudes that their type has, in units from products of large numbers to natural ones.
RC_GTEST_PROP(OnlineSoftmax, AnyTreeInAUnitOfItsOwnEqualsTwoPass, ()) {
  auto k = *keys();
  const float factor = *rc::gen::element(static_cast<float>(kLog2e), 0.18033688f, 1e-20f, 3e10f);
  const float size = *rc::gen::element(1.0f, 1e3f, 1e9f, 1e20f, 1e33f);
  std::vector<Key> in_log2 = k;
  for (std::size_t i = 0; i < k.size(); ++i) {
    const double score = std::clamp(k[i].score / factor * size, -3.4e38, 3.4e38);
    k[i].score = std::isinf(k[i].score) ? k[i].score : static_cast<float>(score);
    in_log2[i].score = k[i].score * double{factor};
  }
  const Row got = finished(any_tree<float>(k, 0, k.size(), factor), factor), right = two_pass(in_log2);
  if (right.lse == -kInf) return expect_equal(got, right, 0);
  // The rounding of m * factor, while it may be fused, is 2^-13; see kFusable.
  const double unsure = std::abs(right.lse) <= kFusable ? 3e-7 * (10 + std::abs(right.lse)) : 1e-5;
  RC_ASSERT(std::abs(got.out - right.out) <= 4 * unsure);
  RC_ASSERT(std::abs(got.lse - right.lse) <= unsure + 1e-6 * std::abs(right.lse) ||
            (std::abs(right.lse) > 3.4e38 && std::isinf(got.lse)));
}

TEST(OnlineSoftmax, ReferencesBeyondLog2AreFinite) {
  constexpr float kNatural = static_cast<float>(kLog2e), kMax = std::numeric_limits<float>::max();
  for (const float m : {-kMax, kMax, 2.4e38f, 5e8f, -1e10f}) {
    State<float> s;
    const std::vector<Key> k{{m, 1}, {m, 4}, {m, 1}};
    visit(s, k.data(), k.data() + 2, kNatural);
    visit(s, k.data() + 2, k.data() + 3, kNatural);
    const Row row = finished(s, kNatural);
    EXPECT_FLOAT_EQ(static_cast<float>(row.out), 2) << m;
    EXPECT_FLOAT_EQ(static_cast<float>(row.lse), m) << m;
  }
}

// While it may be fused, a weight is the same either way up to the rounding of the maximum.
RC_GTEST_PROP(OnlineSoftmax, FusedWeightsAreWeights, ()) {
  const float m = static_cast<float>(*rc::gen::inRange(-2800000, 2800000)) / 1000;
  const float score = m - static_cast<float>(*rc::gen::inRange(0, 20000)) / 1000;
  constexpr float kNatural = static_cast<float>(kLog2e);
  RowState<float> s;
  const Step<float> r = advance(s, m, kNatural), kept = keep(s, kNatural);
  RC_ASSERT(r.before == 0.0f);
  RC_ASSERT(fused_weight(score, kNatural, r) == weight(score, kNatural, r));
  RC_ASSERT(fused_weight(score, kNatural, kept) == weight(score, kNatural, r));
}

RC_GTEST_PROP(OnlineSoftmax, NaNAndInfinityReachTheResult, ()) {
  auto k = *keys();
  const double poison = *rc::gen::element(std::nan(""), kInf);
  k.insert(k.begin() + *rc::gen::inRange<std::ptrdiff_t>(0, static_cast<std::ptrdiff_t>(k.size()) + 1), {poison, 1});
  const Row plain = finished(any_tree<double>(k, 0, k.size())),
            scaled = finished(any_tree<double>(k, 0, k.size(), 2.0), 2.0);
  for (double x : {plain.out, plain.lse, scaled.out, scaled.lse}) RC_ASSERT(std::isnan(x));
}

RC_GTEST_PROP(OnlineSoftmax, SinksJoinTheDenominatorOnly, ()) {
  const auto k = *keys();
  const double sink = *rc::gen::element(-kInf, -1e5, -3.0, 0.0, 4.5, 1e5);
  State<double> s = any_tree<double>(k, 0, k.size());
  const Merged<double> with = join_sink(s.row, sink);
  s = {with.state, s.o * with.alpha_a};
  expect_equal(finished(s), two_pass(k, sink), 1e-12);  // of a row without keys: the sink alone
}

RC_GTEST_PROP(OnlineSoftmax, TheEmptyStateIsTheIdentity, ()) {
  const auto k = *keys();
  const State<double> s = any_tree<double>(k, 0, k.size()), empty;
  for (const State<double>& j : {joined(s, empty), joined(empty, s)}) {
    RC_ASSERT(j.row.m == s.row.m);
    RC_ASSERT(j.row.l == s.row.l);
    RC_ASSERT(j.o == s.o);
  }
  const Row nothing = finished(empty);
  RC_ASSERT(nothing.out == 0.0);
  RC_ASSERT(nothing.lse == -kInf);
}

RC_GTEST_PROP(OnlineSoftmax, AFinishedPartialIsAStateAgain, ()) {
  const auto k = *keys();
  const std::size_t cut = *rc::gen::inRange<std::size_t>(0, k.size() + 1);
  const Row a = two_pass({k.begin(), k.begin() + static_cast<std::ptrdiff_t>(cut)}),
            b = two_pass({k.begin() + static_cast<std::ptrdiff_t>(cut), k.end()});
  const State<double> s = joined(State<double>{from_lse(a.lse), a.out}, State<double>{from_lse(b.lse), b.out});
  expect_equal(finished(s), two_pass(k), 1e-10);
}

// A lazy step may leave the reference behind; weights above 1 are still the same state.
RC_GTEST_PROP(OnlineSoftmax, KeepingTheReferenceChangesNothing, ()) {
  const auto number = rc::gen::map(rc::gen::inRange(-400, 400), [](int n) { return n / 64.0; });
  const std::vector<Key> k{{*number, 1}, {*number, 2}, {*number, -1}};
  State<double> s;
  visit(s, k.data(), k.data() + 1);
  const Rescale<double> r = keep(s.row);
  for (std::size_t i = 1; i < k.size(); ++i) {
    absorb(s.row, weight(k[i].score, r));
    s.o += weight(k[i].score, r) * k[i].value;
  }
  expect_equal(finished(s), two_pass(k), 1e-12);
}

// A score that is the LSE weighs 1, at any magnitude; what is far from it weighs nothing.
TEST(OnlineSoftmax, WeightsFromAnLseOfAnyMagnitude) {
  constexpr float kLowest = -std::numeric_limits<float>::max(), kFactor = static_cast<float>(kLog2e);
  for (const float lse : {0.0f, 1.0f, -300.0f, 1e30f, 9e36f, 2e37f, -2e37f, 2.4e38f, -3.38e38f, kLowest, -kLowest}) {
    const Step<float> r = refer_to_lse(lse, 1.0);
    EXPECT_TRUE(std::isfinite(r.before) && std::isfinite(r.after)) << lse;
    EXPECT_EQ(weight(lse, kFactor, r), 1.0f) << lse;
    EXPECT_EQ(weight(-std::numeric_limits<float>::infinity(), kFactor, r), 0.0f) << lse;
    if (lse > -1e38f) {
      EXPECT_EQ(weight(kLowest, kFactor, r), 0.0f) << lse;
    }
  }
  for (const double unit : {1e-30, 1e-38, 1e-45}) {  // a scale that vanishes: scores near 0, the LSE is log n
    const Step<float> r = refer_to_lse(std::log(7.0f), unit);
    EXPECT_TRUE(std::isfinite(r.after)) << unit;
    EXPECT_NEAR(weight(1.0f, static_cast<float>(unit * kLog2e), r), 1.0f / 7, 1e-6f) << unit;
  }
}

// The largest score weighs exactly 1 by a reference that is exact, and states of any cut have the sum of the whole.
RC_GTEST_PROP(OnlineSoftmax, AnExactReferenceWeighsTheMaximumAsOne, ()) {
  const auto m = static_cast<float>(*rc::gen::inRange(-300000, 300000)) / 97.0f;
  const auto factor = static_cast<float>(*rc::gen::inRange(1, 2000)) / 999.0f;
  RowState<float> s;
  const Step<float> r = advance_exactly(s, m, factor);
  RC_ASSERT(weight(m, factor, r) == 1.0f);
  absorb(s, weight(m, factor, r));
  const RowState<float> joined = merge_exactly(s, RowState<float>{m, 2.0f}, factor).state;
  RC_ASSERT(joined.l == 3.0f);
}

TEST(OnlineSoftmax, ProbabilityFromTheLse) {
  EXPECT_DOUBLE_EQ(probability(3.0, 5.0), 0.25);
  EXPECT_EQ(probability(-kInf, -kInf), 0.0);  // an empty row's masked score
}

}  // namespace
}  // namespace onepass
