// Every forward rung: equal to the float64 oracle, honest about its operations, and with exactly the papers' traffic.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "fixture.hpp"
#include "ladder/steps/flash1_forward.hpp"
#include "ladder/steps/flash2_forward.hpp"
#include "ladder/steps/flash_decoding.hpp"
#include "ladder/steps/one_pass.hpp"
#include "ladder/steps/standard_forward.hpp"

namespace onepass::ladder {
namespace {

template <class T>
struct Rung {
  const char* name;
  std::function<Slow<T>(Machine<T>&, const Head<T>&)> run;
};
template <class T>
std::vector<Rung<T>> rungs() {
  return {
      {"standard", [](auto& m, const auto& h) { return standard_forward(m, h).o; }},
      {"two-pass", [](auto& m, const auto& h) { return two_pass_attention(m, h).o; }},
      {"one-pass", [](auto& m, const auto& h) { return one_pass_attention(m, h).o; }},
      {"flash 1",
       [](auto& m, const auto& h) {
         return flash1_forward(m, h, flash1_forward_tiles(m.fast_capacity(), m.fast_capacity(), h)).o;
       }},
      {"flash 2",
       [](auto& m, const auto& h) { return flash2_forward(m, h, flash2_forward_tiles(m.fast_capacity(), h)).o; }},
  };
}

const char* const kProblems[] = {
    "fwd b1 h1 s64 d16 fp32",
    "fwd b1 h1 s1 d1 fp32",
    "fwd b1 h1 s37x61 d8/5 fp32",
    "fwd b1 h1 s65x129 d7 fp32 causal_bottom_right",
    "fwd b1 h1 s70x33 d8 fp32 causal_bottom_right",  // rows without a key
    "fwd b1 h1 s50 d8 fp32 window=9:4",
    "fwd b1 h1 s33x47 d8 fp32 causal_top_left",
    "fwd b1 h1 s40x63 d8 fp32 dropout=0.3 seed=5",
    "fwd b1 h1 s63 d8/12 fp32 causal_bottom_right dropout=0.1 seed=7",
    "fwd b1 h1 s5x0 d4 fp32",
    "fwd b1 h1 s0x5 d4 fp32",
};

TEST(Forward, EqualsTheOracleWithinFastMemory) {
  for (const char* line : kProblems) {
    const Sample sample(line);
    for (const Index fast : {Index{1000}, Index{4096}, Index{1 << 20}}) {
      for (const auto& rung : rungs<double>()) {
        Machine<double> machine(fast);
        EXPECT_LT(error_of(rung.run(machine, sample.head<double>()).outside(), sample.out), 1e-12)
            << rung.name << ": " << line;
        EXPECT_LE(machine.fast_peak(), fast);
      }
      for (const auto& rung : rungs<float>()) {
        Machine<float> machine(fast);
        EXPECT_LT(error_of(rung.run(machine, sample.head<float>()).outside(), sample.out), 1e-5)
            << rung.name << ": " << line;
      }
    }
  }
}

TEST(Forward, RandomShapesMasksAndMemories) {
  rc::check([] {
    const auto size = [](int most) { return *rc::gen::inRange(1, most); };
    const std::string mask = *rc::gen::element<std::string>(
        "", " causal_bottom_right", " causal_top_left", " window=5:2", " window=0:0", " window=-1:3 aligned_top_left");
    const std::string line = text("fwd b1 h1 s", size(60), "x", size(60), " d", size(12), "/", size(12), " fp32", mask);
    const Sample sample(line, *rc::gen::arbitrary<unsigned>());
    const Index fast = *rc::gen::inRange(700, 20000);
    for (const auto& rung : rungs<double>()) {
      Machine<double> machine(fast);
      const double error = error_of(rung.run(machine, sample.head<double>()).outside(), sample.out);
      if (!(error < 1e-12)) RC_FAIL(text(rung.name, " is off by ", error, ": ", line, ", ", fast, " bytes"));
    }
  });
}

TEST(Forward, StatisticsEqualTheOracle) {
  const Sample sample("fwd b1 h1 s70x33 d8 fp32 causal_bottom_right");
  const Head<double> head = sample.head<double>();
  Machine<double> machine(4096);
  EXPECT_LT(error_of(one_pass_attention(machine, head).stats.outside(), sample.lse), 1e-12);
  EXPECT_LT(error_of(flash2_forward(machine, head, flash2_forward_tiles(4096, head)).stats.outside(), sample.lse),
            1e-12);
  const Slow<double> ml = flash1_forward(machine, head, flash1_forward_tiles(4096, 4096, head)).stats;
  std::vector<double> lse;
  for (std::size_t i = 0; i < sample.lse.size(); ++i) {
    lse.push_back(finalize(RowState<double>{ml.outside()[2 * i], ml.outside()[2 * i + 1]}).lse);
  }
  EXPECT_LT(error_of(lse, sample.lse), 1e-12);
}

TEST(Forward, CountsWhatItComputes) {
  for (const char* line : kProblems) {
    const Sample sample(line);
    const Head<Counted> head = sample.head<Counted>();
    for (const auto& rung : rungs<Counted>()) {
      Machine<Counted> machine(4096);
      Counted::operations = Counted::exponentials = 0;
      rung.run(machine, head);
      EXPECT_EQ(machine.counts.flops(), Counted::operations) << rung.name << ": " << line;
      EXPECT_EQ(machine.counts.exponentials, Counted::exponentials) << rung.name << ": " << line;
    }
  }
}

TEST(Forward, ARungThatDoesNotFitIsRefused) {
  const Sample sample("fwd b1 h1 s64 d16 fp32");
  const Head<double> head = sample.head<double>();
  Machine<double> machine(4096);
  EXPECT_THROW(flash2_forward(machine, head, {32, 32}), Error);
  EXPECT_THROW(flash1_forward(machine, head, {1, 64}), Error);
  Machine<double> tiny(16);
  EXPECT_THROW(standard_forward(tiny, Sample("fwd b1 h1 s9x9 d9 fp32").head<double>()), Error);
}

// Elements of float64 in all closed forms below.
struct Shape {
  Index n, keys, d, dv, fast;
};
const Shape kShapes[] = {{64, 64, 16, 16, 1 << 20},
                         {128, 128, 16, 16, 20000},
                         {37, 61, 8, 5, 3000},
                         {203, 129, 7, 9, 9000},
                         {65, 257, 4, 4, 2000}};
Head<double> head_of(const Shape& s, const std::string& more = "") {
  return Sample(text("fwd b1 h1 s", s.n, "x", s.keys, " d", s.d, "/", s.dv, " fp32 ", more)).head<double>();
}

TEST(Traffic, Standard) {
  for (const Shape& s : kShapes) {
    const Index n2 = s.n * s.keys;
    for (const bool masked : {false, true}) {
      for (const bool dropped : {false, true}) {
        const Head<double> head = head_of(s, std::string(masked ? "window=3:3 " : "") + (dropped ? "dropout=0.5" : ""));
        Machine<double> machine(s.fast);
        standard_forward(machine, head);
        const GemmTiles qk = gemm_tiles(s.n, s.keys, s.d, 8, 8, 8, s.fast),
                        pv = gemm_tiles(s.n, s.dv, s.keys, 8, 8, 8, s.fast);
        const Index once = qk.a_moves(s.n, s.keys, s.d) + qk.b_moves(s.n, s.keys, s.d) + n2 + 2 * n2 +
                           pv.a_moves(s.n, s.dv, s.keys) + pv.b_moves(s.n, s.dv, s.keys) + s.n * s.dv;
        const Index twice = 8 * s.keys > s.fast ? n2 : 0;  // a row that does not fit is read twice
        EXPECT_EQ(machine.counts.bytes(),
                  8 * (once + twice + (masked ? 2 * n2 : 0) + (dropped ? 2 * n2 : 0)) + (dropped ? n2 : 0));
        EXPECT_EQ(machine.extra_peak(), 8 * 2 * n2 + (dropped ? n2 : 0));  // S is gone when dropout writes
      }
    }
  }
  const Shape roomy = kShapes[0];  // every matrix moves once: N d + N d + N^2, 2 N^2, N^2 + N dv + N dv
  Machine<double> machine(roomy.fast);
  standard_forward(machine, head_of(roomy));
  EXPECT_EQ(machine.counts.bytes(), 8 * (4 * 64 * 16 + 4 * 64 * 64));
}

TEST(Traffic, TwoPassAndOnePass) {
  for (const Shape& s : kShapes) {
    Machine<double> two(s.fast), one(s.fast);
    two_pass_attention(two, head_of(s));
    one_pass_attention(one, head_of(s));
    EXPECT_EQ(two.counts.bytes(), 8 * (s.n * s.keys * (2 * s.d + s.dv) + s.n * (2 * s.d + s.dv + 4)));
    EXPECT_EQ(one.counts.bytes(), 8 * (s.n * s.keys * (s.d + s.dv) + s.n * (s.d + s.dv + 1)));
    EXPECT_EQ(two.extra_peak(), 8 * 2 * s.n);
    EXPECT_EQ(one.extra_peak(), 8 * s.n);
  }
}

TEST(Traffic, Flash1) {
  for (const Shape& s : kShapes) {
    const Head<double> head = head_of(s);
    const TileShape t = flash1_forward_tiles(s.fast, s.fast, head);
    Machine<double> machine(s.fast);
    flash1_forward(machine, head, t);
    const Index visits = ceil_div(s.keys, t.keys);
    EXPECT_EQ(machine.counts.bytes_read, 8 * (s.keys * (s.d + s.dv) + visits * s.n * (s.d + s.dv + 2)));
    EXPECT_EQ(machine.counts.bytes_written, 8 * (visits + 1) * s.n * (s.dv + 2));
    EXPECT_EQ(machine.extra_peak(), 8 * 2 * s.n);
    EXPECT_LE(flash1_forward_bytes(t, head), s.fast);
    EXPECT_LE(machine.fast_peak(), flash1_forward_bytes(t, head));
    EXPECT_EQ(machine.counts.matmul_flops, 2 * s.n * s.keys * (s.d + s.dv));
  }
}
TEST(Traffic, Flash1TilesAreThePapers) {
  // M = 96 Ki elements, d = 64: Bc = ceil(98304 / 256) = 384, Br = min(384, 64). Fits when M >= 8 d^2 + a little.
  const Head<double> head = head_of({8, 8, 64, 64, 0});
  const TileShape t = paper_tiles(98304 * 8, head);
  EXPECT_EQ(t.keys, 384);
  EXPECT_EQ(t.rows, 64);
  EXPECT_EQ(flash1_forward_tiles(98304 * 8, 98304 * 8, head).keys, 384);
  EXPECT_EQ(flash1_forward_tiles(98304 * 8, 98304 * 8, head).rows, 64);
}
// Halving M doubles the visits: traffic is Theta(N^2 d^2 / M).
TEST(Traffic, Flash1ScalesAsTheTheoremSays) {
  const Shape s{512, 512, 8, 8, 0};
  const Head<double> head = head_of(s);
  std::vector<double> products;
  for (Index fast = 8192; fast <= 32768; fast *= 2) {
    Machine<double> machine(fast);
    flash1_forward(machine, head, flash1_forward_tiles(fast, fast, head));
    products.push_back(static_cast<double>(machine.counts.bytes()) * static_cast<double>(fast));
  }
  for (double p : products) EXPECT_NEAR(p / products[0], 1.0, 0.2);
}

TEST(Traffic, Flash2) {
  for (const Shape& s : kShapes) {
    const Head<double> head = head_of(s);
    const TileShape t = flash2_forward_tiles(s.fast, head);
    Machine<double> machine(s.fast);
    flash2_forward(machine, head, t);
    EXPECT_EQ(machine.counts.bytes_read, 8 * (s.n * s.d + ceil_div(s.n, t.rows) * s.keys * (s.d + s.dv)));
    EXPECT_EQ(machine.counts.bytes_written, 8 * s.n * (s.dv + 1));
    EXPECT_EQ(machine.extra_peak(), 8 * s.n);
    EXPECT_LE(flash2_forward_bytes(t, head), s.fast);
    EXPECT_LE(machine.fast_peak(), flash2_forward_bytes(t, head));
  }
}
// Causal, N a multiple of square tiles: T (T + 1) / 2 of T^2 tiles are loaded, T of them masked.
TEST(Traffic, Flash2SkipsAndMasksByTile) {
  const Index n = 96, d = 8, b = 16, tiles = n / b, visited = tiles * (tiles + 1) / 2;
  const Head<double> full = head_of({n, n, d, d, 0}), causal = head_of({n, n, d, d, 0}, "causal_bottom_right");
  Machine<double> a(1 << 20), c(1 << 20);
  flash2_forward(a, full, {b, b});
  flash2_forward(c, causal, {b, b});
  EXPECT_EQ(a.counts.bytes_read, 8 * (n * d + tiles * tiles * 2 * b * d));
  EXPECT_EQ(c.counts.bytes_read, 8 * (n * d + visited * 2 * b * d));
  EXPECT_EQ(c.counts.matmul_flops, visited * 4 * b * b * d);
  // per score: scale, max, difference, sum (and one 2^x); per row and tile: advance 3, absorb 1, O d; per row: 3 + d
  const Index per_tile = 4 * b * b + b * (4 + d), ends = n * (3 + d);
  EXPECT_EQ(a.counts.pointwise_flops, tiles * tiles * per_tile + ends);
  EXPECT_EQ(c.counts.pointwise_flops, visited * per_tile + tiles * b * b + ends);
  EXPECT_EQ(c.counts.exponentials, visited * (b * b + b) + n);
}

TEST(FlashDecoding, EqualsTheOracleForAnySplitsAndMovesKAndVOnce) {
  for (const Shape& s : {Shape{1, 300, 8, 8, 4096}, Shape{4, 129, 8, 5, 4096}, Shape{7, 61, 3, 4, 9000}}) {
    for (const char* mask : {"", " causal_bottom_right", " window=50:0", " window=90:9 dropout=0.2 seed=4"}) {
      const Sample sample(text("fwd b1 h1 s", s.n, "x", s.keys, " d", s.d, "/", s.dv, " fp32", mask));
      const Head<double> head = sample.head<double>();
      for (const Index splits : {1, 2, 3, 8, 400}) {
        Machine<double> machine(s.fast);
        const Forward<double> f = flash_decoding(machine, head, splits, decode_tile_keys(s.fast, head));
        EXPECT_LT(error_of(f.o.outside(), sample.out), 1e-12);
        EXPECT_LT(error_of(f.stats.outside(), sample.lse), 1e-12);
        EXPECT_EQ(machine.extra_peak(), 8 * (splits + 1) * s.n * (s.dv + 1) - 8 * s.n * s.dv);
        EXPECT_EQ(machine.counts.bytes_written, 8 * (splits + 1) * s.n * (s.dv + 1));
        if (*mask == 0) {
          EXPECT_EQ(machine.counts.bytes_read, 8 * (s.keys * (s.d + s.dv) + splits * s.n * (s.d + s.dv + 1)));
        }
      }
      Machine<Counted> machine(s.fast);
      Counted::operations = Counted::exponentials = 0;
      flash_decoding(machine, sample.head<Counted>(), 5, 16);
      EXPECT_EQ(machine.counts.flops(), Counted::operations);
      EXPECT_EQ(machine.counts.exponentials, Counted::exponentials);
    }
  }
}

}  // namespace
}  // namespace onepass::ladder
