// The algebra against the float64 two-pass algorithm: any tiling, any order, any tree of merges, either reference.
#include "core/online_softmax.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/scalar.hpp"

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
  if (m == -kInf) return {0, -kInf};
  const double top = std::max(m, sink);
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

template <Reference kind, class T>
void visit(State<T>& s, const Key* from, const Key* to) {
  T top = Arith<T>::neg_inf(), sum = 0;
  for (const Key* k = from; k < to; ++k) top = Arith<T>::max(top, static_cast<T>(k->score));
  const Rescale<T> r = advance<kind>(s.row, top);
  s.o *= r.alpha;
  for (const Key* k = from; k < to; ++k) {
    const T w = weight(static_cast<T>(k->score), r);
    sum += w;
    s.o += w * static_cast<T>(k->value);
  }
  absorb(s.row, sum);
}

template <class T>
State<T> joined(const State<T>& a, const State<T>& b) {
  const Merged<T> m = merge(a.row, b.row);
  return {m.state, a.o * m.alpha_a + b.o * m.alpha_b};
}

template <class T>
Row finished(const State<T>& s) {
  const Final<T> f = finalize(s.row);
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
template <Reference kind, class T>
State<T> any_tree(const std::vector<Key>& k, std::size_t from, std::size_t to) {
  const int choice = *rc::gen::inRange(0, 3);
  if (choice == 0 || to - from < 2) {
    State<T> s;
    while (from < to) {
      const std::size_t end = from + *rc::gen::inRange<std::size_t>(1, to - from + 1);
      visit<kind>(s, k.data() + from, k.data() + end);
      from = end;
    }
    if (*rc::gen::arbitrary<bool>()) visit<kind>(s, k.data(), k.data());  // an empty tile changes nothing
    return s;
  }
  const std::size_t cut = *rc::gen::inRange(from, to + 1);
  const State<T> a = any_tree<kind, T>(k, from, cut), b = any_tree<kind, T>(k, cut, to);
  return choice == 1 ? joined(a, b) : joined(b, a);
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
  expect_equal(finished(any_tree<Reference::running, double>(k, 0, k.size())), two_pass(k), 1e-12);
}
RC_GTEST_PROP(OnlineSoftmax, AnyTreeWithIntegerReferencesEqualsTwoPass, ()) {
  const auto k = *keys();
  expect_equal(finished(any_tree<Reference::integer, double>(k, 0, k.size())), two_pass(k), 1e-12);
}
RC_GTEST_PROP(OnlineSoftmax, InFloat, ()) {
  auto k = *keys();
  for (Key& key : k) key.score = static_cast<float>(key.score);
  expect_equal(finished(any_tree<Reference::running, float>(k, 0, k.size())), two_pass(k), 1e-5);
  expect_equal(finished(any_tree<Reference::integer, float>(k, 0, k.size())), two_pass(k), 1e-5);
}

RC_GTEST_PROP(OnlineSoftmax, NaNAndInfinityReachTheResult, ()) {
  auto k = *keys();
  const double poison = *rc::gen::element(std::nan(""), kInf);
  k.insert(k.begin() + *rc::gen::inRange<std::ptrdiff_t>(0, static_cast<std::ptrdiff_t>(k.size()) + 1), {poison, 1});
  const Row running = finished(any_tree<Reference::running, double>(k, 0, k.size()));
  const Row integer = finished(any_tree<Reference::integer, double>(k, 0, k.size()));
  for (double x : {running.out, running.lse, integer.out, integer.lse}) RC_ASSERT(std::isnan(x));
}

RC_GTEST_PROP(OnlineSoftmax, SinksJoinTheDenominatorOnly, ()) {
  const auto k = *keys();
  const double sink = *rc::gen::element(-kInf, -1e5, -3.0, 0.0, 4.5, 1e5);
  State<double> s = any_tree<Reference::running, double>(k, 0, k.size());
  const Merged<double> with = join_sink(s.row, sink);
  s = {with.state, s.o * with.alpha_a};
  expect_equal(finished(s), two_pass(k, sink), 1e-12);  // a row without keys stays empty
}

RC_GTEST_PROP(OnlineSoftmax, TheEmptyStateIsTheIdentity, ()) {
  const auto k = *keys();
  const State<double> s = any_tree<Reference::running, double>(k, 0, k.size()), empty;
  for (const State<double>& j : {joined(s, empty), joined(empty, s)}) {
    RC_ASSERT(j.row.m == s.row.m);
    RC_ASSERT(j.row.l == s.row.l);
    RC_ASSERT(j.o == s.o);
  }
  const Row nothing = finished(empty);
  RC_ASSERT(nothing.out == 0.0);
  RC_ASSERT(nothing.lse == -kInf);
}

RC_GTEST_PROP(OnlineSoftmax, IntegerReferencesRescaleByPowersOfTwo, ()) {
  const auto number = rc::gen::map(rc::gen::inRange(-20 * 64, 20 * 64), [](int n) { return n / 64.0; });
  const double m1 = *number, m2 = *number;
  const std::vector<Key> first{{m1, 1.5}, {m1 - 0.3, -0.7}}, second{{m2, 0.9}};
  State<float> a, b;
  visit<Reference::integer>(a, first.data(), first.data() + 2);
  visit<Reference::integer>(b, second.data(), second.data() + 1);
  RC_ASSERT(a.row.m == std::ceil(a.row.m));
  const Merged<float> m = merge(a.row, b.row);
  for (float alpha : {m.alpha_a, m.alpha_b}) {
    int exponent;
    RC_ASSERT(std::frexp(alpha, &exponent) == 0.5f);
  }
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
  visit<Reference::running>(s, k.data(), k.data() + 1);
  const Rescale<double> r = keep(s.row);
  for (std::size_t i = 1; i < k.size(); ++i) {
    absorb(s.row, weight(k[i].score, r));
    s.o += weight(k[i].score, r) * k[i].value;
  }
  expect_equal(finished(s), two_pass(k), 1e-12);
}

TEST(OnlineSoftmax, ProbabilityFromTheLse) {
  EXPECT_DOUBLE_EQ(probability(3.0, 5.0), 0.25);
  EXPECT_EQ(probability(-kInf, -kInf), 0.0);  // an empty row's masked score
}

}  // namespace
}  // namespace onepass
