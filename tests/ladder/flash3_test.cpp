// FlashAttention-3: the result, the traffic, and a timeline whose overlap is what the schedule promises.
#include <gtest/gtest.h>

#include "base/text.hpp"
#include "fixture.hpp"
#include "ladder/steps/flash3_forward.hpp"

namespace onepass::ladder {
namespace {

constexpr Schedule kSchedules[] = {Schedule::serial, Schedule::two_stage, Schedule::ping_pong};

TEST(Flash3, EveryScheduleEqualsTheOracleWithinFastMemory) {
  for (const char* line :
       {"fwd b1 h1 s64 d16 fp32", "fwd b1 h1 s37x61 d8/5 fp32", "fwd b1 h1 s65x129 d7 fp32 causal_bottom_right",
        "fwd b1 h1 s70x33 d8 fp32 causal_bottom_right", "fwd b1 h1 s50 d8 fp32 window=9:4",
        "fwd b1 h1 s40x63 d8 fp32 dropout=0.3 seed=5", "fwd b1 h1 s5x0 d4 fp32"}) {
    const Sample sample(line);
    for (const Schedule schedule : kSchedules) {
      for (const Index warpgroups : {1, 2, 3}) {
        for (const Index fast : {Index{2000}, Index{1 << 18}}) {
          const Head<double> head = sample.head<double>();
          Machine<double> machine(fast);
          Timeline time(machine.counts, warpgroups);
          const TileShape t = flash3_forward_tiles(fast, warpgroups, head);
          const Forward<double> f = flash3_forward(machine, head, t, warpgroups, schedule, time);
          EXPECT_LT(error_of(f.o.outside(), sample.out), 1e-12) << line;
          EXPECT_LT(error_of(f.stats.outside(), sample.lse), 1e-12) << line;
          EXPECT_LE(machine.fast_peak(), flash3_forward_bytes(t, warpgroups, head));
        }
      }
    }
    Machine<Counted> machine(1 << 18);
    Timeline time(machine.counts, 2);
    Counted::operations = Counted::exponentials = 0;
    flash3_forward(machine, sample.head<Counted>(), {16, 16}, 2, Schedule::two_stage, time);
    EXPECT_EQ(machine.counts.flops(), Counted::operations) << line;
  }
}

TEST(Flash3, WarpgroupsShareKAndV) {
  const Sample sample("fwd b1 h1 s96x80 d8 fp32");
  for (const Index warpgroups : {1, 2, 3}) {
    Machine<double> machine(1 << 18);
    Timeline time(machine.counts, warpgroups);
    flash3_forward(machine, sample.head<double>(), {16, 16}, warpgroups, Schedule::two_stage, time);
    EXPECT_EQ(machine.counts.bytes_read, 8 * (96 * 8 + 96 / (16 * warpgroups) * 80 * 16));
    EXPECT_EQ(machine.counts.bytes_written, 8 * 96 * 9);
  }
}

// One warpgroup block of 128 rows over T tiles of 128 keys, d = 128, as on an H100: each product takes 1024 cycles, the
// 2^x of a tile, the same number; O is rescaled in between.
struct Costs {
  static constexpr double product = 2.0 * 128 * 128 * 128 / 4096;
  static constexpr double softmax = (128.0 * 128 + 128) / 16;  // 2^x of the scores and of the alphas
  static constexpr double rescale = 128.0 * 128 / 128;
  static constexpr double finish = 128.0 * (128 + 3) / 128;  // O / l
};
double cycles_of(Schedule schedule, Index warpgroups, Index tiles, double* utilisation = nullptr) {
  const Sample sample(text("fwd b1 h1 s", 128 * warpgroups, "x", 128 * tiles, " d128 fp32"));
  Machine<float> machine(Index{1} << 24);
  Timeline time(machine.counts, warpgroups);
  flash3_forward(machine, sample.head<float>(), {128, 128}, warpgroups, schedule, time);
  if (utilisation) *utilisation = time.utilisation();
  return time.cycles();
}

TEST(Flash3, SerialTimelineIsTheSum) {
  for (const Index tiles : {1, 2, 5}) {
    EXPECT_DOUBLE_EQ(
        cycles_of(Schedule::serial, 1, tiles),
        static_cast<double>(tiles) * (2 * Costs::product + Costs::softmax + Costs::rescale) + Costs::finish);
  }
}
TEST(Flash3, TwoStagesHideTheSoftmaxUnderTheNextProduct) {
  for (const Index tiles : {1, 2, 5}) {
    const double step = Costs::product + std::max(Costs::product, Costs::softmax) + Costs::rescale;
    EXPECT_DOUBLE_EQ(cycles_of(Schedule::two_stage, 1, tiles), Costs::product + Costs::softmax + Costs::rescale +
                                                                   static_cast<double>(tiles - 1) * step +
                                                                   Costs::product + Costs::finish);
  }
}
TEST(Flash3, PingPongKeepsTheMatrixUnitBusy) {
  double serial = 0, two_stage = 0, ping_pong = 0;
  cycles_of(Schedule::serial, 1, 12, &serial);
  cycles_of(Schedule::two_stage, 1, 12, &two_stage);
  cycles_of(Schedule::ping_pong, 2, 12, &ping_pong);
  EXPECT_LT(serial, two_stage);
  EXPECT_GT(two_stage, 0.85);
  EXPECT_GT(ping_pong, 0.93);
  EXPECT_LE(ping_pong, 1.0);
}

}  // namespace
}  // namespace onepass::ladder
