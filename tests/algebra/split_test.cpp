#include "algebra/split.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace onepass {
namespace {

RC_GTEST_PROP(Split, CoversTheKeysExactly, ()) {
  const std::int64_t tasks = *rc::gen::inRange<std::int64_t>(0, 2000),
                     granule = *rc::gen::element<std::int64_t>(1, 16, 32, 64, 96, 128);
  const std::int64_t keys = *rc::gen::oneOf(rc::gen::inRange<std::int64_t>(0, 3000),
                                            rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 40));
  const KeySplits s = split_keys(tasks, keys, granule);
  RC_ASSERT(s.count >= 1);
  RC_ASSERT(s.count * s.chunk >= keys);                    // all of them,
  RC_ASSERT(keys == 0 || (s.count - 1) * s.chunk < keys);  // with no empty split,
  RC_ASSERT(s.chunk % granule == 0);                       // cut between granules
  RC_ASSERT(s.count == 1 || s.chunk >= kSplitMinKeys);
  RC_ASSERT(s.count <= kSplitTarget);
}

TEST(Split, OnlyWhereTasksAreFew) {
  EXPECT_EQ(split_keys(kSplitTarget, 1 << 20, 64).count, 1);
  EXPECT_EQ(split_keys(kSplitTarget * 10, 1 << 20, 64).count, 1);
  EXPECT_EQ(split_keys(1, 1 << 20, 64).count, kSplitTarget);
  EXPECT_EQ(split_keys(8, 1 << 20, 64).count, kSplitTarget / 8);
  EXPECT_EQ(split_keys(1, kSplitMinKeys, 64).count, 1);
  EXPECT_EQ(split_keys(1, 2 * kSplitMinKeys, 64).count, 2);
  EXPECT_EQ(split_keys(0, 0, 64).count, 1);
}

}  // namespace
}  // namespace onepass
