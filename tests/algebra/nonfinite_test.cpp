// The policy for NaN and infinity: what a visible weight is at least, and what the probe finds.
#include <gtest/gtest.h>

#include <limits>

#include "algebra/nonfinite.hpp"
#include "algebra/scalar.hpp"

namespace onepass {
namespace {

template <class T>
class NonFinite : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(NonFinite, Types);

TYPED_TEST(NonFinite, AVisibleWeightIsNever0) {
  using T = TypeParam;
  constexpr T kInf = std::numeric_limits<T>::infinity(), kNan = std::numeric_limits<T>::quiet_NaN();
  EXPECT_EQ(kLeastWeight, 0x1p-80);
  EXPECT_EQ(visible_weight(T(0)), T(0x1p-80));
  EXPECT_EQ(visible_weight(std::numeric_limits<T>::min()), T(0x1p-80));
  EXPECT_EQ(visible_weight(T(0.25)), T(0.25));
  EXPECT_NE(visible_weight(kNan), visible_weight(kNan));
  // An infinity lives through the product with 1 / l of 2^31 keys, all of it in normal numbers.
  EXPECT_GE(visible_weight(T(0)) / T(0x1p31), T(std::numeric_limits<float>::min()));
  EXPECT_EQ(visible_weight(T(0)) * kInf, kInf);
}

TYPED_TEST(NonFinite, AFiniteValueMeetsTheWeightAsItIs) {
  using T = TypeParam;
  constexpr T kInf = std::numeric_limits<T>::infinity(), kNan = std::numeric_limits<T>::quiet_NaN();
  EXPECT_EQ(visible_weight(T(0), std::numeric_limits<T>::max()), T(0));
  EXPECT_EQ(visible_weight(T(1e-30), T(5)), T(1e-30));
  EXPECT_EQ(visible_weight(T(0), -kInf), T(0x1p-80));
  EXPECT_EQ(visible_weight(T(0), kNan), T(0x1p-80));
  EXPECT_EQ(visible_weight(T(0.5), kInf), T(0.5));
}

TYPED_TEST(NonFinite, TheProbeFindsOneOfMany) {
  using T = TypeParam;
  for (const T bad :
       {std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN()}) {
    T probe = 0;
    for (const T x : {T(0), T(-1), std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest(),
                      std::numeric_limits<T>::denorm_min()}) {
      EXPECT_TRUE(is_finite(x));
      probe = probe_finite(probe, x);
    }
    EXPECT_EQ(probe, T(0));
    EXPECT_FALSE(is_finite(bad));
    probe = probe_finite(probe_finite(probe, bad), T(1));
    EXPECT_NE(probe, T(0));
  }
}

}  // namespace
}  // namespace onepass
