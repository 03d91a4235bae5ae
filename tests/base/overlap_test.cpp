// share_memory of two views against the bytes that they touch, and the ordinary uses of one packed tensor.
#include "base/overlap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace onepass {
namespace {

std::byte* const kBase = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);  // never read
Tensor at(std::int64_t element, DType dtype, std::initializer_list<std::int64_t> shape,
          std::initializer_list<std::int64_t> stride) {
  return {kBase + element * static_cast<std::int64_t>(size_of(dtype)), dtype, shape, stride};
}

std::set<std::uintptr_t> bytes_of(const Tensor& t) {
  std::set<std::uintptr_t> bytes;
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  std::int64_t n = t.elements();
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t offset = 0, rest = i;
    for (int d = t.rank - 1; d >= 0; rest /= t.shape[d--]) offset += rest % t.shape[d] * t.stride[d];
    for (std::int64_t e = 0; e < size; ++e)
      bytes.insert(reinterpret_cast<std::uintptr_t>(t.data) + static_cast<std::uintptr_t>(offset * size + e));
  }
  return bytes;
}

bool meet(const Tensor& a, const Tensor& b) {
  const auto x = bytes_of(a), y = bytes_of(b);
  return std::any_of(x.begin(), x.end(), [&](std::uintptr_t byte) { return y.contains(byte); });
}

// Strides and places at random, of few enough elements that every case is decided.
TEST(Overlap, IsWhatTheBytesSay) {
  std::mt19937 random(1);
  const auto among = [&](int lo, int hi) { return std::uniform_int_distribution<std::int64_t>(lo, hi)(random); };
  int shared = 0, interleaved = 0;
  for (int i = 0; i < 20000; ++i) {
    Tensor t[2];
    for (Tensor& x : t) {
      x.dtype = among(0, 1) ? DType::f32 : DType::bf16;
      x.rank = static_cast<int>(among(1, 4));
      x.data = kBase + 2 * among(0, 40);
      for (int d = 0; d < x.rank; ++d) {
        x.shape[d] = among(0, 9) == 0 ? 0 : among(1, 4);
        x.stride[d] = among(-30, 30);
      }
    }
    const bool expected = meet(t[0], t[1]);
    ASSERT_EQ(share_memory(t[0], t[1]), expected) << i;
    ASSERT_EQ(share_memory(t[1], t[0]), expected) << i;
    const Extent a = extent_of(t[0]), b = extent_of(t[1]);
    shared += expected;
    interleaved += !expected && a.from < b.to && b.from < a.to;
  }
  EXPECT_GT(shared, 2000);
  EXPECT_GT(interleaved, 1000);
}

// Slices of one dense tensor along every dimension, with steps and reversed, against the index boxes: they are disjoint
// if they are in one dimension. The tensor is far too large for a search element by element.
TEST(Overlap, IsExactForSlicesOfOneTensor) {
  const std::int64_t size[] = {1000, 4096, 48, 128};
  const std::int64_t stride[] = {std::int64_t{4096} * 48 * 128, 48 * 128, 128, 1};
  std::mt19937 random(2);
  const auto among = [&](std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(random);
  };
  int shared = 0;
  for (int i = 0; i < 20000; ++i) {
    Tensor t[2];
    bool expected = true;
    for (Tensor& x : t) {
      x.dtype = DType::bf16;
      x.rank = 4;
      x.data = kBase;
    }
    for (int d = 0; d < 4; ++d) {
      std::vector<bool> taken(static_cast<std::size_t>(size[d]));
      bool met = false;
      for (Tensor& x : t) {
        const std::int64_t step = d == 3 || among(0, 1) ? 1 : among(1, 7), first = among(0, size[d] - 1);
        x.shape[d] = among(1, (size[d] - 1 - first) / step + 1);
        x.stride[d] = step * stride[d];
        x.data = static_cast<std::byte*>(x.data) + 2 * first * stride[d];
        for (std::int64_t k = 0; k < x.shape[d]; ++k) {
          auto in = taken[static_cast<std::size_t>(first + k * step)];
          met = met || (&x == &t[1] && in);
          in = in || &x == &t[0];
        }
        if (d < 3 && among(0, 3) == 0) {  // reversed
          x.data = static_cast<std::byte*>(x.data) + 2 * (x.shape[d] - 1) * x.stride[d];
          x.stride[d] = -x.stride[d];
        }
      }
      expected = expected && met;
    }
    ASSERT_EQ(share_memory(t[0], t[1]), expected) << i;
    shared += expected;
  }
  EXPECT_GT(shared, 500);
  EXPECT_LT(shared, 19500);
}

// q, k, v and out in the slots of one buffer.
TEST(Overlap, SlotsOfAPackedTensorAreApart) {
  constexpr std::int64_t b = 4, s = 1000, h = 16, d = 64;
  const auto slot = [&](std::int64_t i) {  // [b, s, 4, h, d] as [b, h, s, d]
    return at(i * h * d, DType::bf16, {b, h, s, d}, {s * 4 * h * d, d, 4 * h * d, 1});
  };
  const auto part = [&](std::int64_t i) {  // [b, s, h, 4 d]
    return at(i * d, DType::bf16, {b, h, s, d}, {s * 4 * h * d, 4 * d, 4 * h * d, 1});
  };
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t j = 0; j < 4; ++j) {
      EXPECT_EQ(share_memory(slot(i), slot(j)), i == j);
      EXPECT_EQ(share_memory(part(i), part(j)), i == j);
      EXPECT_TRUE(share_memory(slot(i), part(j)));
    }
  }
  EXPECT_TRUE(share_memory(at(0, DType::f32, {2, 3, 4}, {12, 4, 1}), at(23, DType::f32, {1}, {1})));
  EXPECT_FALSE(share_memory(at(0, DType::f32, {2, 3, 4}, {12, 4, 1}), at(24, DType::f32, {1}, {1})));
  EXPECT_FALSE(share_memory(at(0, DType::f32, {2, 0, 4}, {12, 4, 1}), at(0, DType::f32, {2, 3, 4}, {12, 4, 1})));
  EXPECT_FALSE(share_memory(Tensor(), slot(0)));
}

TEST(Overlap, DoubtIsYesAndDevicesAreApart) {
  // Coprime steps of a prime apart: no search of a reasonable length finds out.
  const Tensor a = at(0, DType::bf16, {40000, 40000}, {999983, 1000003}),
               b = at(7, DType::bf16, {40000, 40000}, {999979, 1000033});
  EXPECT_TRUE(share_memory(a, b));
  const Tensor wide = at(0, DType::f32, {3, 4}, {INT64_MAX, 1});  // in no address space
  EXPECT_TRUE(share_memory(wide, at(100, DType::f32, {4}, {1})));
  Tensor there = a;
  there.device = {DeviceKind::cuda, 1};
  EXPECT_FALSE(share_memory(a, there));
  there.device = {};
  EXPECT_TRUE(share_memory(a, there));
}

}  // namespace
}  // namespace onepass
