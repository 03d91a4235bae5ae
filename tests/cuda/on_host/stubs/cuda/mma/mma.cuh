// A stub for src/cuda/mma/mma.cuh: 32 lanes show each other their operands.
#pragma once
#include "cuda/device/arith.cuh"
#include "cuda/device/shared.cuh"

namespace onepass {

struct Rows {  // where the rows of four 8 x 8 matrices lie
  std::vector<u32> at;
  u16 element(u32 matrix, u32 row, u32 column) const {
    u16 x;
    std::memcpy(&x, shared_at<char>(at[8 * matrix + row], 16) + 2 * column, 2);
    return x;
  }
};
DEV void ldmatrix4(u32* r, u32 from) {
  const Rows rows{warps::share(from)};
  const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (u32 i = 0; i < 4; ++i) r[i] = rows.element(i, g, 2 * t) | rows.element(i, g, 2 * t + 1) << 16;
}
DEV void ldmatrix4_transposed(u32* r, u32 from) {
  const Rows rows{warps::share(from)};
  const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (u32 i = 0; i < 4; ++i) r[i] = rows.element(i, 2 * t, g) | rows.element(i, 2 * t + 1, g) << 16;
}

// A tensor core aligns a step's products and the accumulator to the largest of them, keeps two bits more than fp32 has,
// and cuts the sum to fp32 (Fasi, Higham, Mikaitis and Pranesh 2021).
DEV float truncated(double x) {
  const float nearest = static_cast<float>(x);
  return std::isfinite(nearest) && std::abs(static_cast<double>(nearest)) > std::abs(x) ? std::nextafter(nearest, 0.0f)
                                                                                        : nearest;
}
// Hopper's products of 8 bits keep 13 bits behind the largest one's first.
template <std::size_t n>
DEV float truncated_sum_e4m3(const std::array<double, n>& terms) {
  double largest = 0, sum = 0;
  for (const double x : terms) largest = std::max(largest, std::abs(x)), sum += x;
  if (largest == 0 || !std::isfinite(sum)) return static_cast<float>(sum);
  const double unit = std::ldexp(1.0, 13 - std::ilogb(largest));
  i64 units = 0;
  for (const double x : terms) units += static_cast<i64>(x * unit);
  return static_cast<float>(static_cast<double>(units) / unit);
}
template <std::size_t n>
DEV float truncated_sum(const std::array<double, n>& terms) {
  double sum = 0, largest = 0;
  for (const double x : terms) sum += x, largest = std::max(largest, std::abs(x));
  if (largest == 0 || !std::isfinite(sum)) return static_cast<float>(sum);
  // 2^(25 - e), where the largest has exponent e: fp32 products reach from 2^-298 to 2^256.
  const u64 exponent = std::bit_cast<u64>(largest) >> 52;
  const auto unit = std::bit_cast<double>((2046 + 25 - exponent) << 52);
  i64 units = 0;
  for (const double x : terms) units += static_cast<i64>(x * unit);
  return truncated(static_cast<double>(units) / unit);
}
struct Operands {
  u32 a[4], b[2];
};
DEV std::vector<Operands> operands_of_all(const u32* a, u32 b0, u32 b1) {
  return warps::share(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
}

template <class Format>
DEV void mma_16816(Format, float* d, const u32* a, u32 b0, u32 b1) {
  const auto all = operands_of_all(a, b0, b1);
  const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const auto value = [](u32 word, u32 k) -> double { return Format::unpack(static_cast<u16>(word >> k % 2 * 16)); };
  double rows[2][16], columns[2][16];
  for (u32 i = 0; i < 2; ++i) {
    for (u32 k = 0; k < 16; ++k) {
      rows[i][k] = value(all[4 * g + k % 8 / 2].a[i + k / 8 * 2], k);
      columns[i][k] = value(all[4 * (2 * t + i) + k % 8 / 2].b[k / 8], k);
    }
  }
  for (u32 i = 0; i < 4; ++i) {
    std::array<double, 17> terms{d[i]};
    for (u32 k = 0; k < 16; ++k) terms[k + 1] = rows[i / 2][k] * columns[i % 2][k];
    d[i] = truncated_sum(terms);
  }
}
// It looks at 19 bits of an operand.
DEV void mma_1688(float* d, const u32* a, u32 b0, u32 b1) {
  const auto all = operands_of_all(a, b0, b1);
  const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const auto value = [](u32 word) { return std::bit_cast<float>(word & 0xffffe000u); };
  for (u32 i = 0; i < 4; ++i) {
    std::array<double, 9> terms{d[i]};
    for (u32 k = 0; k < 8; ++k) {
      const Operands &row = all[4 * g + k % 4], &column = all[4 * (2 * t + i % 2) + k % 4];
      terms[k + 1] = static_cast<double>(value(row.a[i / 2 + k / 4 * 2])) * value(column.b[k / 4]);
    }
    d[i] = truncated_sum(terms);
  }
}

DEV void mma_bits(i32* d, const u32* a, u32 b) {
  struct Bits {
    u32 a[2], b;
  };
  const auto all = warps::share(Bits{{a[0], a[1]}, b});
  const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (u32 i = 0; i < 4; ++i)
    for (u32 k = 0; k < 4; ++k) d[i] += std::popcount(all[4 * g + k].a[i / 2] & all[4 * (2 * t + i % 2) + k].b);
}

}  // namespace onepass
