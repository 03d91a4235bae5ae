// The staged bias without a GPU: every score of a tile gets its own bias.
#include <gtest/gtest.h>

#include "on_host/bias_source.hpp"

namespace {

float value(int row, int key) { return static_cast<float>(row) * 0.5f + static_cast<float>(key % 64) * 64.0f; }
float exact_in_bf16(int row, int key) { return static_cast<float>((row * 131 + key * 17) % 256 - 128); }

void expect_own(const std::vector<float>& got, float (*wanted)(int, int)) {
  for (int row = 0; row < 128; ++row)
    for (int key = 0; key < 128; ++key)
      ASSERT_EQ(got[static_cast<std::size_t>(128 * row + key)], wanted(row, key)) << "row " << row << " key " << key;
}

TEST(EmulatedBias, EveryScoreGetsItsOwn) {
  expect_own(warps::staged_f32(value), value);
  expect_own(warps::staged_f32(exact_in_bf16), exact_in_bf16);
  expect_own(warps::staged_bf16(exact_in_bf16), exact_in_bf16);
}

}  // namespace
