// FlashAttention-3's FP8 path: what each measure is worth, and what the narrow accumulator costs.
#include <gtest/gtest.h>

#include "fixture.hpp"
#include "ladder/flash3_fp8.hpp"

namespace onepass::ladder {
namespace {

// The FlashAttention-3 paper's data: N(0, 1) plus, once in a thousand, N(0, 100).
Sample outliers(Index n, Index keys, Index d) {
  Sample sample(text("fwd b1 h1 s", n, "x", keys, " d", d, " fp32"));
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  for (auto* x : {&sample.q, &sample.k, &sample.v}) {
    for (float& e : *x) e = normal(rng) + (rng() % 1000 == 0 ? 10.0f * normal(rng) : 0.0f);
  }
  sample.solve();
  return sample;
}
double rmse(const Slow<float>& o, const std::vector<double>& reference) {
  double sum = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double e = static_cast<double>(o.outside()[i]) - reference[i];
    sum += e * e;
  }
  return std::sqrt(sum / static_cast<double>(reference.size()));
}
Slow<float> fp8(const Sample& sample, const Fp8Options& options, Index fast = 1 << 17) {
  Machine<float> machine(fast);
  const Head<float> head = sample.head<float>();
  const TileShape shape = flash3_fp8_tiles(fast, head);
  Slow<float> o = flash3_fp8_forward(machine, head, shape, options).o;
  EXPECT_LE(machine.fast_peak(), flash3_fp8_bytes(shape, head));
  return o;
}

TEST(Fp8, IncoherentProcessingDoesNearlyAllOfIt) {
  const Sample sample = outliers(256, 4096, 128);
  const double plain = rmse(fp8(sample, {true, false}), sample.out),
               blocks = rmse(fp8(sample, {false, false}), sample.out);
  const double turned = rmse(fp8(sample, {true, true}), sample.out),
               both = rmse(fp8(sample, {false, true}), sample.out);
  std::printf("RMSE per-tensor %.2e, blocks %.2e, Hadamard %.2e, both %.2e (paper 2.4e-2, 2.4e-2, 9.3e-3, 9.1e-3)\n",
              plain, blocks, turned, both);
  EXPECT_LT(both, 0.65 * plain);
  EXPECT_LT(turned, 0.65 * plain);
  EXPECT_NEAR(both / turned, 1.0, 0.15);
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

// V of mean 1: O comes out too small, the more the longer the row; a second accumulator cures it.
TEST(Fp8, TheNarrowAccumulatorLosesAndTheSecondOneCures) {
  const auto loss = [](Index keys, Accumulator accumulator) {
    Sample sample(text("fwd b1 h1 s16x", keys, " d8/8 fp32"));
    for (float& x : sample.q) x /= 3;  // scores of standard deviation 1
    for (float& x : sample.v) x += 1;
    sample.solve();
    Machine<float> machine(1 << 15);
    const Head<float> head = sample.head<float>();
    const Slow<float> o = flash3_fp8_forward(machine, head, {16, 128}, {true, true, accumulator, 2}).o;
    double sum = 0, want = 0;
    for (std::size_t i = 0; i < sample.out.size(); ++i)
      sum += static_cast<double>(o.outside()[i]), want += sample.out[i];
    return 1 - sum / want;
  };
  const double at_1k = loss(1024, Accumulator::truncated), at_4k = loss(4096, Accumulator::truncated);
  const double at_16k = loss(16384, Accumulator::truncated), cured = loss(16384, Accumulator::truncated_then_fp32);
  const double wide = loss(16384, Accumulator::fp32);
  std::printf(
      "O too small by %.2f, %.2f, %.2f %% at 1k, 4k, 16k keys (an H100: 1, 5, 18); cured %.2f %%, wide %.2f %%\n",
      100 * at_1k, 100 * at_4k, 100 * at_16k, 100 * cured, 100 * wide);
  EXPECT_NEAR(at_1k, 0.01, 0.006);
  EXPECT_NEAR(at_4k, 0.05, 0.015);
  EXPECT_NEAR(at_16k, 0.18, 0.03);
  EXPECT_LT(std::abs(cured), 0.008);
  EXPECT_LT(std::abs(wide), 0.004);
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
