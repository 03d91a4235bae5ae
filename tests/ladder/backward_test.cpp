// Every backward rung: equal to the dense float64 gradients, honest about its operations, with exactly the papers'
// traffic.
#include <gtest/gtest.h>

#include <functional>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "fixture.hpp"
#include "ladder/steps/flash2_backward.hpp"
#include "ladder/steps/standard_backward.hpp"

namespace onepass::ladder {
namespace {

template <class T>
struct Rung {
  const char* name;
  std::function<Gradients<T>(Machine<T>&, const Head<T>&, const Slow<T>&)> run;
};
template <class T>
std::vector<Rung<T>> rungs() {
  return {
      {"standard",
       [](auto& m, const auto& h, const auto& d_o) {
         const auto f = standard_forward(m, h);
         return standard_backward(m, h, f, d_o);
       }},
      {"flash 1",
       [](auto& m, const auto& h, const auto& d_o) {
         const Index fast = m.fast_capacity();
         const auto f = flash1_forward(m, h, flash1_forward_tiles(fast, fast, h));
         return flash1_backward(m, h, f, d_o, flash1_backward_tiles(fast, fast, h));
       }},
      {"flash 2",
       [](auto& m, const auto& h, const auto& d_o) {
         const Index fast = m.fast_capacity();
         const auto f = flash2_forward(m, h, flash2_forward_tiles(fast, h));
         return flash2_backward(m, h, f, d_o, flash2_backward_tiles(fast, h));
       }},
  };
}

template <class T>
void expect_close(const Gradients<T>& g, const reference::DenseGradients& want, double bound, const std::string& what) {
  EXPECT_LT(error_of(g.dq.outside(), want.dq.value), bound) << what << " dq";
  EXPECT_LT(error_of(g.dk.outside(), want.dk.value), bound) << what << " dk";
  EXPECT_LT(error_of(g.dv.outside(), want.dv.value), bound) << what << " dv";
}

TEST(Backward, EqualsTheOracleWithinFastMemory) {
  for (const char* line : kDerivativeProblems) {
    const Sample sample(line);
    const reference::DenseGradients want = sample.gradients();
    for (const Index fast : {Index{1200}, Index{6000}, Index{1 << 20}}) {
      for (const auto& rung : rungs<double>()) {
        Machine<double> machine(fast);
        expect_close(rung.run(machine, sample.head<double>(), sample.grad_out<double>()), want, 1e-12,
                     text(rung.name, ": ", line));
        EXPECT_LE(machine.fast_peak(), fast);
      }
      for (const auto& rung : rungs<float>()) {
        Machine<float> machine(fast);
        expect_close(rung.run(machine, sample.head<float>(), sample.grad_out<float>()), want, 2e-5,
                     text(rung.name, ": ", line));
      }
    }
  }
}

TEST(Backward, CountsWhatItComputes) {
  for (const char* line : kDerivativeProblems) {
    const Sample sample(line);
    for (const auto& rung : rungs<Counted>()) {
      Machine<Counted> machine(6000);
      Counted::operations = Counted::exponentials = 0;
      rung.run(machine, sample.head<Counted>(), sample.grad_out<Counted>());
      EXPECT_EQ(machine.counts.flops(), Counted::operations) << rung.name << ": " << line;
      EXPECT_EQ(machine.counts.exponentials, Counted::exponentials) << rung.name << ": " << line;
    }
  }
}

struct Shape {
  Index n, keys, d, dv, fast;
};
const Shape kShapes[] = {
    {64, 64, 16, 16, 1 << 20}, {128, 128, 16, 16, 20000}, {37, 61, 8, 5, 4000}, {203, 129, 7, 9, 9000}};
Sample sample_of(const Shape& s, const std::string& more = "") {
  return Sample(text("fwd b1 h1 s", s.n, "x", s.keys, " d", s.d, "/", s.dv, " fp32 ", more));
}

TEST(BackwardTraffic, StandardMovesEachMatrixOncePerKernelIfMemoryAllows) {
  const Shape s = kShapes[0];
  for (const bool dropped : {false, true}) {
    const Sample sample = sample_of(s, dropped ? "dropout=0.5" : "");
    const Head<double> head = sample.head<double>();
    Machine<double> forward(s.fast), machine(s.fast);
    const StandardForward<double> f = standard_forward(forward, head);
    standard_backward(machine, head, f, sample.grad_out<double>());
    const Index n2 = s.n * s.keys, nd = s.n * s.d;
    // dV: P, dO, dV. dP: dO, V, dP. dS: P, dP, dS. dQ: dS, K, dQ. dK: dS, Q, dK. Dropout: dP, mask, dP.
    EXPECT_EQ(machine.counts.bytes(), 8 * (7 * n2 + 8 * nd) + (dropped ? 17 * n2 : 0));
    EXPECT_EQ(machine.extra_peak(), 8 * 2 * n2);
    EXPECT_EQ(machine.counts.matmul_flops, 8 * n2 * s.d);
  }
}
TEST(BackwardTraffic, Flash1) {
  for (const Shape& s : kShapes) {
    const Sample sample = sample_of(s);
    const Head<double> head = sample.head<double>();
    const TileShape t = flash1_backward_tiles(s.fast, s.fast, head);
    Machine<double> forward(s.fast), machine(s.fast);
    const Forward<double> f = flash1_forward(forward, head, flash1_forward_tiles(s.fast, s.fast, head));
    flash1_backward(machine, head, f, sample.grad_out<double>(), t);
    const Index visits = ceil_div(s.keys, t.keys);
    EXPECT_EQ(machine.counts.bytes_read, 8 * (s.keys * (s.d + s.dv) + visits * s.n * (2 * s.d + 2 * s.dv + 2)));
    EXPECT_EQ(machine.counts.bytes_written, 8 * (s.keys * (s.d + s.dv) + (visits + 1) * s.n * s.d));
    EXPECT_EQ(machine.counts.matmul_flops, 2 * s.n * s.keys * (3 * s.d + 2 * s.dv));  // five products
    EXPECT_EQ(machine.extra_peak(), 0);                                               // (m, l) came from forward
    EXPECT_LE(flash1_backward_bytes(t, head), s.fast);
    EXPECT_LE(machine.fast_peak(), flash1_backward_bytes(t, head));
  }
}
TEST(BackwardTraffic, Flash2) {
  for (const Shape& s : kShapes) {
    const Sample sample = sample_of(s);
    const Head<double> head = sample.head<double>();
    const TileShape t = flash2_backward_tiles(s.fast, head);
    Machine<double> forward(s.fast), machine(s.fast);
    const Forward<double> f = flash2_forward(forward, head, flash2_forward_tiles(s.fast, head));
    flash2_backward(machine, head, f, sample.grad_out<double>(), t);
    const Index visits = ceil_div(s.keys, t.keys);
    EXPECT_EQ(machine.counts.bytes_read,
              8 * (2 * s.n * s.dv + s.keys * (s.d + s.dv) + visits * s.n * (2 * s.d + s.dv + 2)));
    EXPECT_EQ(machine.counts.bytes_written, 8 * (s.n + s.keys * (s.d + s.dv) + (visits + 1) * s.n * s.d));
    EXPECT_EQ(machine.extra_peak(), 8 * s.n);  // D
    EXPECT_LE(flash2_backward_bytes(t, head), s.fast);
    EXPECT_LE(machine.fast_peak(), flash2_backward_bytes(t, head));
  }
}
TEST(BackwardTraffic, Flash2SkipsCausalTiles) {
  const Index n = 96, d = 8, b = 16, tiles = n / b, visited = tiles * (tiles + 1) / 2;
  const Sample sample = sample_of({n, n, d, d, 0}, "causal_bottom_right");
  const Head<double> head = sample.head<double>();
  Machine<double> forward(1 << 20), machine(1 << 20);
  const Forward<double> f = flash2_forward(forward, head, {b, b});
  flash2_backward(machine, head, f, sample.grad_out<double>(), {b, b});
  EXPECT_EQ(machine.counts.matmul_flops, visited * 10 * b * b * d);
  EXPECT_EQ(machine.counts.exponentials, visited * b * b);
}

}  // namespace
}  // namespace onepass::ladder
