// The rungs of forward mode and of second derivatives: equal to the float64 oracle, honest about their operations, with
// the traffic that their loops have.
#include <gtest/gtest.h>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "fixture.hpp"
#include "ladder/steps/tangents/second_derivatives.hpp"

namespace onepass::ladder {
namespace {

template <class T>
struct Results {
  ForwardMode<T> mode;
  Gradients<T> second;
};
template <class T>
Results<T> run(Machine<T>& machine, const Sample& sample) {
  const Index fast = machine.fast_capacity();
  const Head<T> head = sample.head<T>();
  const Tangents<T> tangents = sample.tangents<T>();
  const Slow<T> d_o = sample.grad_out<T>(), td_o = sample.tangent_of_grad_out<T>();
  ForwardMode<T> mode = forward_mode(machine, head, tangents, forward_mode_tiles(fast, head));
  Gradients<T> second = second_derivatives(machine, head, mode, {tangents, d_o, td_o}, second_tiles(fast, head));
  return {std::move(mode), std::move(second)};
}

template <class T>
void expect_right(const Sample& sample, Index fast, double bound, const std::string& what) {
  const reference::DenseTangents mode = sample.tangent_results();
  const reference::DenseGradients second = sample.second_derivatives();
  Machine<T> machine(fast);
  const Results<T> got = run(machine, sample);
  EXPECT_LE(machine.fast_peak(), fast) << what;
  EXPECT_LT(error_of(got.mode.forward.o.outside(), sample.out), bound) << what << " out";
  EXPECT_LT(error_of(got.mode.forward.stats.outside(), sample.lse), bound) << what << " lse";
  EXPECT_LT(error_of(got.mode.o.outside(), mode.tout.value), bound) << what << " tout";
  EXPECT_LT(error_of(got.mode.mu.outside(), mode.tlse.value), bound) << what << " tlse";
  EXPECT_LT(error_of(got.second.dq.outside(), second.dq.value), bound) << what << " tdq";
  EXPECT_LT(error_of(got.second.dk.outside(), second.dk.value), bound) << what << " tdk";
  EXPECT_LT(error_of(got.second.dv.outside(), second.dv.value), bound) << what << " tdv";
}

TEST(TangentRungs, EqualTheOracleWithinFastMemory) {
  for (const char* line : kDerivativeProblems) {
    const Sample sample(line);
    for (const Index fast : {Index{2400}, Index{9000}, Index{1 << 20}}) {
      expect_right<double>(sample, fast, 1e-12, text(line, ", ", fast, " bytes"));
      expect_right<float>(sample, fast, 5e-5, text(line, ", ", fast, " bytes, fp32"));
    }
  }
}

TEST(TangentRungs, CountWhatTheyCompute) {
  for (const char* line : kDerivativeProblems) {
    const Sample sample(line);
    Machine<Counted> machine(9000);
    Counted::operations = Counted::exponentials = 0;
    run(machine, sample);
    EXPECT_EQ(machine.counts.flops(), Counted::operations) << line;
    EXPECT_EQ(machine.counts.exponentials, Counted::exponentials) << line;
  }
}

struct Shape {
  Index n, keys, d, dv, fast;
};
const Shape kShapes[] = {{64, 64, 16, 16, 1 << 20}, {128, 128, 16, 16, 40000}, {203, 129, 7, 9, 18000}};

// Six products and twelve, for the forward's two; each token moves as often as the loops visit it; O(N) extra.
TEST(TangentRungs, MoveAndComputeWhatTheLoopsSay) {
  for (const Shape& s : kShapes) {
    const Sample sample(text("fwd b1 h1 s", s.n, "x", s.keys, " d", s.d, "/", s.dv, " fp32"));
    const Head<double> head = sample.head<double>();
    const Tangents<double> tangents = sample.tangents<double>();
    const Slow<double> d_o = sample.grad_out<double>(), td_o = sample.tangent_of_grad_out<double>();
    const Index pairs = s.n * s.keys, both = s.d + s.dv;
    Machine<double> first(s.fast), second(s.fast);

    const TileShape tiles = forward_mode_tiles(s.fast, head);
    const ForwardMode<double> mode = forward_mode(first, head, tangents, tiles);
    EXPECT_EQ(first.counts.matmul_flops, 2 * pairs * (3 * s.d + 3 * s.dv));
    EXPECT_EQ(first.counts.bytes_read, 8 * (2 * s.n * s.d + ceil_div(s.n, tiles.rows) * 2 * s.keys * both));
    EXPECT_EQ(first.counts.bytes_written, 8 * s.n * (2 * s.dv + 2));
    EXPECT_EQ(first.extra_peak(), 8 * 2 * s.n);

    const TileShape columns = second_tiles(s.fast, head);
    const Index visits = ceil_div(s.keys, columns.keys);
    second_derivatives(second, head, mode, {tangents, d_o, td_o}, columns);
    EXPECT_EQ(second.counts.matmul_flops, 2 * pairs * (7 * s.d + 5 * s.dv));
    EXPECT_EQ(second.counts.bytes_read,
              8 * (2 * s.keys * both + 4 * s.n * s.dv + visits * s.n * (3 * s.d + 2 * s.dv + 4)));
    EXPECT_EQ(second.counts.bytes_written, 8 * (s.keys * both + 2 * s.n + s.n * s.d * (1 + visits)));
    EXPECT_EQ(second.extra_peak(), 8 * 2 * s.n);
  }
}

TEST(TangentRungs, TilesThatTheMaskHidesAreNotVisited) {
  const Sample full("fwd b1 h1 s128 d16 fp32"), causal("fwd b1 h1 s128 d16 fp32 causal_bottom_right");
  Machine<double> all(20000), some(20000);
  run(all, full), run(some, causal);
  EXPECT_LT(static_cast<double>(some.counts.matmul_flops), 0.7 * static_cast<double>(all.counts.matmul_flops));
  EXPECT_LT(some.counts.bytes(), all.counts.bytes());
}

}  // namespace
}  // namespace onepass::ladder
