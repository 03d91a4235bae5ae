// FlashAttention-3's FP8 path: what each measure is worth, and what the narrow accumulator costs.
#include <gtest/gtest.h>

#include "base/text.hpp"
#include "fixture.hpp"
#include "ladder/steps/flash3_fp8.hpp"
#include "ladder/table.hpp"

namespace onepass::ladder {
namespace {

Slow<float> fp8(const Sample& sample, const Fp8Options& options, Index fast = 1 << 17) {
  Machine<float> machine(fast);
  const Head<float> head = sample.head<float>();
  const TileShape shape = flash3_fp8_tiles(fast, head);
  Slow<float> o = flash3_fp8_forward(machine, head, shape, options).o;
  EXPECT_LE(machine.fast_peak(), flash3_fp8_bytes(shape, head));
  return o;
}

const Fp8Study& study() {
  static const Fp8Study once = measure_fp8();
  return once;
}

TEST(Fp8, IncoherentProcessingDoesNearlyAllOfIt) {
  const std::vector<Fp8Study::Rmse> rmse = study().rmse;  // per tensor, per tile, and both with the map
  ASSERT_EQ(rmse.size(), 4u);
  for (const Fp8Study::Rmse& r : rmse) {
    EXPECT_LT(r.here, 1.2 * r.in_paper) << r.how;
    EXPECT_GT(r.here, 0.6 * r.in_paper) << r.how;
  }
  EXPECT_LT(rmse[2].here, 0.65 * rmse[0].here);
  EXPECT_NEAR(rmse[3].here / rmse[2].here, 1.0, 0.15);
}

// V of mean 1: O comes out too small, the more the longer the row; a second accumulator cures it.
TEST(Fp8, TheNarrowAccumulatorLosesAndTheSecondOneCures) {
  for (const Fp8Study::Loss& l : study().loss) {
    EXPECT_NEAR(l.narrow / l.h100, 1.0, 0.3) << l.keys;  // the H100's numbers are rounded to a percent
    EXPECT_LT(std::abs(l.emptied), 0.005) << l.keys;
    EXPECT_LT(std::abs(l.wide), 0.004) << l.keys;
  }
}

TEST(Fp8, DropoutIsRefused) {
  const Sample sample("fwd b1 h1 s8 d8 fp32 dropout=0.5");
  Machine<float> machine(1 << 15);
  EXPECT_THROW(flash3_fp8_forward(machine, sample.head<float>(), {8, 8}, {}), Error);
}

TEST(Fp8, TheMapKeepsDotProducts) {
  Machine<double> machine(1 << 16);
  for (const Index d : {1, 8, 24, 64}) {
    const Sample sample(text("fwd b1 h1 s2 d", d, " fp32"));
    const Head<double> head = sample.head<double>();
    Tile<double> q = machine.load(head.q, 0, 2);
    const double before = row_dot(q, machine.load(head.k, 0, 2), 0);
    Tile<double> k = machine.load(head.k, 0, 2);
    const Incoherent<double> map(d, 7);
    map.turn(q);
    map.turn(k);
    EXPECT_NEAR(row_dot(q, k, 0), before, 1e-12);
  }
}

TEST(Fp8, MasksAndRaggedSizesStillHold) {
  for (const char* line : {"fwd b1 h1 s65x129 d16 fp32 causal_bottom_right", "fwd b1 h1 s37x61 d8/5 fp32",
                           "fwd b1 h1 s70x33 d8 fp32 causal_bottom_right"}) {
    const Sample sample(line);
    EXPECT_LT(error_of(fp8(sample, {}, 8000).outside(), sample.out), 0.15) << line;  // e4m3 has 4 significant bits
  }
}

TEST(Fp8, OneInstructionCutsTowardZeroAtThirteenBits) {
  const double tiny[] = {0.9 * 0x1p-13, 0.9 * 0x1p-13};
  EXPECT_EQ(add_truncated(1.0, tiny, 2), 1.0);  // each is cut to 0 before they meet
  const double step[] = {-1.5 * 0x1p-13};
  EXPECT_EQ(add_truncated(1.0, step, 1), 1.0 - 0x1p-13);  // toward zero, not down
  std::vector<double> many(33, 0x1p-14);                  // the 33rd goes into a second instruction
  EXPECT_EQ(add_truncated(0.0, many.data(), 33), 33 * 0x1p-14);
  EXPECT_EQ(add_truncated(1.0, many.data(), 33), 1.0);
}

TEST(Fp8, CountsWhatItComputes) {
  for (const char* line : {"fwd b1 h1 s37x61 d8/5 fp32", "fwd b1 h1 s65x129 d16 fp32 causal_bottom_right"}) {
    const Sample sample(line);
    for (const bool per_tensor : {false, true}) {
      Machine<Counted> machine(1 << 15);
      Counted::operations = Counted::exponentials = 0;
      flash3_fp8_forward(machine, sample.head<Counted>(), {16, 32}, {per_tensor, !per_tensor});
      EXPECT_EQ(machine.counts.flops(), Counted::operations) << line;
      EXPECT_EQ(machine.counts.exponentials, Counted::exponentials) << line;
    }
  }
}

// fp8 tiles move one byte per element; quantising by tile reads the tensors once and writes a byte per element.
TEST(Fp8, Traffic) {
  const Index n = 64, keys = 96, d = 16, rows = 16, cols = 32;
  const Sample sample(text("fwd b1 h1 s", n, "x", keys, " d", d, " fp32"));
  Machine<double> machine(1 << 15);
  flash3_fp8_forward(machine, sample.head<double>(), {rows, cols}, {});
  const Index elements = (n + 2 * keys) * d, scales = n / rows + 2 * (keys / cols), visits = n / rows;
  EXPECT_EQ(machine.counts.bytes_read,
            8 * elements + n * d + visits * 2 * keys * d + 8 * (n / rows + visits * 2 * (keys / cols)));
  EXPECT_EQ(machine.counts.bytes_written, elements + 8 * scales + 8 * n * (d + 1));
  EXPECT_EQ(machine.extra_peak(), elements + 8 * scales + 8 * n);
}

}  // namespace
}  // namespace onepass::ladder
