// FlashDecoding++: exact with a shared maximum, with rows that leave the range computed again; the dataflow choice.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <memory>
#include <utility>

#include "base/text.hpp"
#include "fixture.hpp"
#include "ladder/dataflow.hpp"
#include "ladder/steps/flash_decoding_pp.hpp"

namespace onepass::ladder {
namespace {

// A result gives its memory back to its machine, so the machine must live longer.
template <class T>
struct ItsMachine {
  std::unique_ptr<Machine<T>> machine;
};
template <class T>
struct Decoded : ItsMachine<T>, UnifiedMax<T> {};

template <class T>
Decoded<T> decode(const Sample& sample, double phi, Index splits = 3, SafeRange range = {}) {
  auto machine = std::make_unique<Machine<T>>(9000);
  auto result = flash_decoding_pp(*machine, sample.head<T>(), splits, 16, phi, range);
  return {{std::move(machine)}, std::move(result)};
}

TEST(FlashDecodingPP, AnyPhiInRangeIsExactAndRecomputesNothing) {
  for (const char* line :
       {"fwd b1 h1 s1x300 d8 fp32", "fwd b1 h1 s4x129 d8/5 fp32 causal_bottom_right",
        "fwd b1 h1 s9x5 d4 fp32 causal_bottom_right", "fwd b1 h1 s3x70 d4 fp32 dropout=0.3 seed=2"}) {
    const Sample sample(line);
    for (const double phi : {-20.0, 0.0, 6.5, 30.0}) {
      const auto result = decode<double>(sample, phi);
      EXPECT_LT(error_of(result.out.o.outside(), sample.out), 1e-12) << line;
      EXPECT_LT(error_of(result.out.stats.outside(), sample.lse), 1e-12) << line;
      EXPECT_EQ(result.recomputed_rows, 0);
      EXPECT_LT(error_of(decode<float>(sample, phi).out.o.outside(), sample.out), 1e-5);
    }
  }
}

// Row i's scores are moved to about 100 i: with phi = 0 only row 0 stays in range, above or below.
TEST(FlashDecodingPP, RowsOutOfRangeAtEitherEndAreComputedAgain) {
  for (const float direction : {100.0f, -100.0f}) {
    Sample sample("fwd b1 h1 s4x200 d1/6 fp32");
    for (int i = 0; i < 4; ++i) sample.q[static_cast<std::size_t>(i)] = direction * static_cast<float>(i) + 1.0f;
    for (float& x : sample.k) x = 1.0f + 0.01f * x;
    sample.solve();
    const auto result = decode<float>(sample, 0.0);
    EXPECT_EQ(result.recomputed_rows, 3);
    EXPECT_LT(error_of(result.out.o.outside(), sample.out), 2e-5);
    EXPECT_LT(error_of(result.out.stats.outside(), sample.lse), 1e-6);
    // Without the check the far rows are lost: inf / inf above, 0 / 0 below.
    const auto unchecked = decode<float>(sample, 0.0, 3, {-INFINITY, INFINITY});
    EXPECT_EQ(unchecked.recomputed_rows, 0);
    EXPECT_GT(error_of(unchecked.out.o.outside(), sample.out), 0.1);
  }
}

TEST(FlashDecodingPP, ARandomPhiNeverChangesTheAnswer) {
  rc::check([] {
    const Sample sample(text("fwd b1 h1 s", *rc::gen::inRange(1, 6), "x", *rc::gen::inRange(1, 90), " d4 fp32"),
                        *rc::gen::arbitrary<unsigned>());
    const double phi = *rc::gen::inRange(-2000, 2000) / 10.0;
    RC_ASSERT(error_of(decode<float>(sample, phi, *rc::gen::inRange(1, 9)).out.o.outside(), sample.out) < 2e-5);
  });
}

TEST(FlashDecodingPP, CountsWhatItComputesAndMoves) {
  const Sample sample("fwd b1 h1 s3x200 d8/5 fp32");
  Machine<Counted> machine(9000);
  Counted::operations = Counted::exponentials = 0;
  flash_decoding_pp(machine, sample.head<Counted>(), 4, 16, 1.0);
  EXPECT_EQ(machine.counts.flops(), Counted::operations);
  EXPECT_EQ(machine.counts.exponentials, Counted::exponentials);
  const Index n = 3, splits = 4;
  EXPECT_EQ(machine.counts.bytes_read, 8 * (200 * 13 + splits * n * 8 + splits * n * (5 + 2)));
  EXPECT_EQ(machine.counts.bytes_written, 8 * (splits * n * (5 + 2) + n * (5 + 1)));
}

TEST(Dataflow, FlatGemm) {
  EXPECT_EQ(FlatGemm::padded(0), 0);
  EXPECT_EQ(FlatGemm::padded(1), 8);
  EXPECT_EQ(FlatGemm::padded(8), 8);
  EXPECT_EQ(FlatGemm::padded(9), 16);
  const FlatGemm g{8, 4096, 4096, 64};
  EXPECT_EQ(g.useful(), 1.0);
  EXPECT_EQ(g.parallelism(), 64);
  // From the traffic of N / B_N blocks that each read A whole, their columns of B, and write their columns of C.
  const double blocks = 4096.0 / 64, moved = blocks * (8.0 * 4096 + 4096.0 * 64 + 8.0 * 64);
  EXPECT_NEAR(g.intensity(), 2.0 * 8 * 4096 * 4096 / moved, 1e-9);
  EXPECT_EQ(FlatGemm::choose_tile_n(12288, 108), 64);  // 192 blocks; 128 wide would leave 96
  EXPECT_EQ(FlatGemm::choose_tile_n(4096, 108), 32);
  EXPECT_EQ(FlatGemm::choose_tile_n(1 << 20, 108), 256);
}

}  // namespace
}  // namespace onepass::ladder
