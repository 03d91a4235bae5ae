// The softmax rungs against float64, their traffic against passes x elements, and block merging in any order.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "fixture.hpp"
#include "ladder/steps/block_softmax.hpp"
#include "ladder/steps/naive_softmax.hpp"
#include "ladder/steps/online_normalizer.hpp"
#include "ladder/steps/safe_softmax.hpp"

namespace onepass::ladder {
namespace {

std::vector<double> softmax64(const std::vector<double>& x) {
  double m = -INFINITY, l = 0;
  for (double s : x) m = std::max(m, s);
  for (double s : x) l += std::exp2(s - m);
  std::vector<double> y;
  for (double s : x) y.push_back(std::exp2(s - m) / l);
  return y;
}
template <class T>
Slow<T> one_row(const std::vector<double>& x) {
  Slow<T> s(1, static_cast<Index>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) s.outside()[i] = T(x[i]);
  return s;
}
std::vector<double> scores(std::size_t n, double spread, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal(0, spread);
  std::vector<double> x(n);
  for (double& s : x) s = normal(rng);
  return x;
}

struct Row {
  const char* name;
  void (*run)(Machine<double>&, const Slow<double>&, Slow<double>&);
  void (*counted)(Machine<Counted>&, const Slow<Counted>&, Slow<Counted>&);
  Index reads;  // per element; each also writes once
};
template <class T>
void blocks_of_7(Machine<T>& machine, const Slow<T>& x, Slow<T>& y) {
  block_softmax(machine, x, y, 7);
}
const Row kRows[] = {{"naive", naive_softmax, naive_softmax, 2},
                     {"safe", safe_softmax, safe_softmax, 3},
                     {"online", online_softmax, online_softmax, 2}};

TEST(Softmax, EqualsFloat64AndMovesPassesTimesElements) {
  for (const std::size_t n : {1u, 2u, 63u, 64u, 203u}) {
    const std::vector<double> x = scores(n, 5, 3), want = softmax64(x);
    for (const Row& row : kRows) {
      for (const Index fast : {Index{8}, Index{512}, Index{1 << 20}}) {  // one element at a time, chunks, whole rows
        Machine<double> machine(fast);
        Slow<double> in = one_row<double>(x), out(1, in.cols());
        row.run(machine, in, out);
        EXPECT_LT(error_of(out.outside(), want), 1e-13) << row.name << n;
        EXPECT_EQ(machine.counts.bytes_read, 8 * row.reads * static_cast<Index>(n)) << row.name;
        EXPECT_EQ(machine.counts.bytes_written, 8 * static_cast<Index>(n)) << row.name;
        EXPECT_LE(machine.fast_peak(), fast);
      }
    }
  }
}

TEST(Softmax, CountsWhatItComputes) {
  const std::vector<double> x = scores(100, 2, 1);
  const auto check = [&](auto&& run, const char* name) {
    Machine<Counted> machine(640);
    Slow<Counted> in = one_row<Counted>(x), out(1, in.cols());
    Counted::operations = Counted::exponentials = 0;
    run(machine, in, out);
    EXPECT_EQ(machine.counts.flops(), Counted::operations) << name;
    EXPECT_EQ(machine.counts.exponentials, Counted::exponentials) << name;
  };
  for (const Row& row : kRows) check(row.counted, row.name);
  check(blocks_of_7<Counted>, "block");
}

TEST(Softmax, OnlyTheNaiveOneOverflows) {
  const std::vector<double> x = {1100, 1099, 1000};  // 2^1100 does not fit float64
  Machine<double> machine(1 << 10);
  Slow<double> in = one_row<double>(x), out(1, 3);
  naive_softmax(machine, in, out);
  EXPECT_TRUE(std::isnan(out.outside()[0]));
  for (const Row& row : {kRows[1], kRows[2]}) {
    row.run(machine, in, out);
    EXPECT_LT(error_of(out.outside(), softmax64(x)), 1e-13) << row.name;
  }
}

TEST(Softmax, ScoresBeyondFastMemoryAreRefused) {
  Machine<double> machine(64);
  Slow<double> in = one_row<double>(scores(9, 1, 1)), out(1, 9);
  EXPECT_THROW(block_softmax(machine, in, out, 9), Error);  // a block of 72 bytes
  block_softmax(machine, in, out, 4);
  EXPECT_EQ(machine.fast_peak(), 64);
}

TEST(BlockSoftmax, AnyTreeOfAnyBlocksGivesTheSameRow) {
  rc::check([] {
    std::vector<double> x = scores(static_cast<std::size_t>(*rc::gen::inRange(1, 120)),
                                   *rc::gen::element(0.5, 5.0, 300.0), *rc::gen::arbitrary<unsigned>());
    for (double& s : x) {
      if (*rc::gen::inRange(0, 6) == 0) s = -INFINITY;
    }
    x[0] = std::isfinite(x[0]) ? x[0] : 1.0;  // at least one visible score
    const Index block = *rc::gen::inRange(1, 40);
    Machine<double> machine(1 << 16);
    Slow<double> in = one_row<double>(x), out(1, in.cols());
    block_softmax(machine, in, out, block, [](std::size_t left) {  // any two of those left
      const std::size_t a = *rc::gen::inRange<std::size_t>(0, left), b = *rc::gen::inRange<std::size_t>(0, left - 1);
      return std::pair{a, b < a ? b : b + 1};
    });
    RC_ASSERT(error_of(out.outside(), softmax64(x)) < 1e-12);
    const Index n = in.cols(), blocks = (n + block - 1) / block;
    RC_ASSERT(machine.counts.bytes_read == 8 * (2 * n + 2 * blocks));
    RC_ASSERT(machine.counts.bytes_written == 8 * (n + 2 * blocks));
    RC_ASSERT(machine.extra_peak() == 16 * blocks);
  });
}

}  // namespace
}  // namespace onepass::ladder
