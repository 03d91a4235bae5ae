// Numbers of e4m3 by shifts, for devices without an instruction for it: every pair of them, against the stub.
#include <gtest/gtest.h>

#include "on_host/intrinsics.hpp"

#define onepass emulated_e4m3
#include "cuda/device/e4m3.cuh"
#undef onepass

namespace emulated_e4m3 {
namespace {

TEST(ShiftPairE4m3, IsTheNumberTimesAPowerOfTwo) {
  const auto value = [](u32 pair, i32 i) { return 256.0f * unpack_f16(static_cast<u16>(pair >> 16 * i)); };
  for (u32 pair = 0; pair < 0x10000; ++pair) {
    const u32 low = shift_pair_e4m3<0>(pair | 0xa55a0000u), high = shift_pair_e4m3<1>(pair << 16 | 0xa55au);
    ASSERT_EQ(low, high);
    for (i32 i = 0; i < 2; ++i) {
      const auto byte = static_cast<unsigned char>(pair >> 8 * i);
      const float expected = (byte & 0x7f) == 0x7f ? byte == 0x7f ? 480.0f : -480.0f : unpack_e4m3(byte);
      ASSERT_EQ(value(low, i), expected) << static_cast<int>(byte);
      ASSERT_EQ(std::signbit(value(low, i)), byte >> 7 != 0);
    }
  }
}

}  // namespace
}  // namespace emulated_e4m3
