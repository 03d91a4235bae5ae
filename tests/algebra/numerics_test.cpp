// Every code of every narrow format, and every place between two codes where the rounding changes, against the formats'
// definitions in exact arithmetic (ldexp in double; no bits are looked at).
#include "algebra/numerics.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace onepass {
namespace {

struct Format {
  int exponent_bits, mantissa_bits;
  bool infinities;  // else only the code of all ones is special, and it is NaN
};
template <class T>
constexpr Format kFormat = {};
template <>
constexpr Format kFormat<f16> = {5, 10, true};
template <>
constexpr Format kFormat<bf16> = {8, 7, true};
template <>
constexpr Format kFormat<f8e4m3> = {4, 3, false};

// The value of a non-negative code by the format's definition.
template <class T>
double value_of(unsigned code) {
  constexpr Format f = kFormat<T>;
  const unsigned exponent = code >> f.mantissa_bits, mantissa = code & ((1u << f.mantissa_bits) - 1);
  const unsigned top = (1u << f.exponent_bits) - 1;
  if (exponent == top && f.infinities) return mantissa ? NAN : INFINITY;
  if (!f.infinities && code == (1u << (f.exponent_bits + f.mantissa_bits)) - 1) return NAN;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  return std::ldexp(mantissa + (1u << f.mantissa_bits), static_cast<int>(exponent) - bias - f.mantissa_bits);
}
template <class T>
constexpr unsigned kSign = 1u << (kFormat<T>.exponent_bits + kFormat<T>.mantissa_bits);
template <class T>
unsigned largest() {  // the largest finite code
  return kFormat<T>.infinities ? kSign<T> - (1u << kFormat<T>.mantissa_bits) - 1 : kSign<T> - 2;
}
template <class T>
T of_code(unsigned code) {
  return {static_cast<decltype(T::bits)>(code)};
}

// tf32 has the exponents of fp32 and 10 bits behind the leading one.
TEST(Tf32, IsTheNearestOfElevenBitsAwayFromZeroInTheMiddle) {
  const auto rounded = [](float x) { return round_to_tf32(x); };
  for (const float sign : {1.0f, -1.0f}) {
    for (int exponent = -126; exponent < 128; ++exponent) {
      for (int mantissa = 0; mantissa < 1024; ++mantissa) {
        const double step = std::ldexp(1.0, exponent - 10), x = std::ldexp(1.0, exponent) + mantissa * step;
        const auto at = [&](double steps) { return sign * static_cast<float>(x + steps * step); };
        const bool overflows = exponent == 127 && mantissa == 1023;
        const float next = overflows ? sign * INFINITY : at(1);
        ASSERT_EQ(rounded(at(0)), at(0));
        ASSERT_EQ(rounded(std::nextafter(at(0.5), 0.0f)), at(0));
        ASSERT_EQ(rounded(at(0.5)), next);
        ASSERT_EQ(rounded(std::nextafter(at(0.5), sign * INFINITY)), next);
      }
    }
    EXPECT_EQ(rounded(sign * INFINITY), sign * INFINITY);
    EXPECT_EQ(rounded(sign * 0.0f), 0.0f);
  }
  EXPECT_TRUE(std::isnan(rounded(NAN)));
  EXPECT_TRUE(std::isnan(rounded(std::bit_cast<float>(0x7fffffffu))));
}

template <class T>
class Narrow : public testing::Test {};
using Formats = testing::Types<f16, bf16, f8e4m3>;
TYPED_TEST_SUITE(Narrow, Formats);

TYPED_TEST(Narrow, EveryCodeHasItsValueAndComesBack) {
  for (unsigned code = 0; code < kSign<TypeParam>; ++code) {
    const double expected = value_of<TypeParam>(code);
    for (unsigned sign : {0u, kSign<TypeParam>}) {
      const float x = to_float(of_code<TypeParam>(code | sign));
      const unsigned back = from_float<TypeParam>(x).bits;
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(x)) << code;
        ASSERT_TRUE(std::isnan(to_float(of_code<TypeParam>(back)))) << code;
      } else {
        ASSERT_EQ(static_cast<double>(x), sign ? -expected : expected) << code;
        ASSERT_EQ(std::signbit(x), sign != 0) << code;
        ASSERT_EQ(back, code | sign) << code;
      }
    }
  }
}

// Between two neighbours: just below the middle goes down, the middle to the even code, just above it up.
TYPED_TEST(Narrow, RoundsToNearestEven) {
  const float inf = std::numeric_limits<float>::infinity();
  for (unsigned code = 0; code < largest<TypeParam>(); ++code) {
    const float middle = static_cast<float>((value_of<TypeParam>(code) + value_of<TypeParam>(code + 1)) / 2);
    for (unsigned sign : {0u, kSign<TypeParam>}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(from_float<TypeParam>(s * middle).bits, (code + (code & 1)) | sign) << code;
      ASSERT_EQ(from_float<TypeParam>(s * std::nextafter(middle, -inf)).bits, code | sign) << code;
      ASSERT_EQ(from_float<TypeParam>(s * std::nextafter(middle, inf)).bits, (code + 1) | sign) << code;
    }
  }
}

TYPED_TEST(Narrow, BeyondTheLargest) {
  const unsigned top = largest<TypeParam>();
  const double step = value_of<TypeParam>(top) - value_of<TypeParam>(top - 1);
  const float last = static_cast<float>(value_of<TypeParam>(top)),
              limit = static_cast<float>(value_of<TypeParam>(top) + step / 2);
  const unsigned over = kFormat<TypeParam>.infinities ? top + 1 : top;  // infinity, or saturation
  EXPECT_EQ(from_float<TypeParam>(std::nextafter(limit, last)).bits, top);
  for (float x : {limit, std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(from_float<TypeParam>(x).bits, over) << x;
    EXPECT_EQ(from_float<TypeParam>(-x).bits, over | kSign<TypeParam>) << x;
  }
  EXPECT_EQ(from_float<TypeParam>(-0.0f).bits, kSign<TypeParam>);
  EXPECT_EQ(from_float<TypeParam>(std::numeric_limits<float>::denorm_min()).bits, 0u);
  // A NaN whose payload lies in the bits that are cut off stays NaN.
  EXPECT_TRUE(std::isnan(to_float(from_float<TypeParam>(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_float(from_float<TypeParam>(std::bit_cast<float>(0xff800001u)))));
}

TEST(Elements, LoadAndStoreByDtype) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f8e4m3}) {
    std::uint32_t buffer[4] = {~0u, ~0u, ~0u, ~0u};
    store_element(buffer, dtype, 2, -1.75f);
    EXPECT_EQ(load_element(buffer, dtype, 2), -1.75f) << name_of(dtype);
    const auto* bytes = reinterpret_cast<const unsigned char*>(buffer);
    for (std::size_t i = 0; i < sizeof buffer; ++i) {
      EXPECT_TRUE(bytes[i] == 0xff || i / size_of(dtype) == 2) << name_of(dtype) << " byte " << i;
    }
  }
}

}  // namespace
}  // namespace onepass
