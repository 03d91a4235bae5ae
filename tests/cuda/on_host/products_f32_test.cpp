// The fp32 products of src/cuda/sm80 on the host, one binary for each tiling: where elements are read and results
// stand, and how far truncating tensor cores are from a chain of fp32 fma. With one product of tf32 the operands are
// rounded, and nothing else differs.
#include <gtest/gtest.h>

#include <random>

#include "algebra/numerics.hpp"
#include "on_host/intrinsics.hpp"

#define onepass emulated_products  // the library has the same names
#include "cuda/sm80/forward/config.hpp"
namespace onepass {
constexpr ForwardFeatures forward_features = {
    .attention = {.dim_qk = PRODUCTS_QK, .dim_v = PRODUCTS_V, .input = ScalarType::f32, .tf32 = PRODUCTS_TF32},
    .output = ScalarType::f32};
constexpr AttentionFeatures features = forward_features.attention;
namespace mma {
constexpr sm80::ForwardConfig config = {.warps = 4,
                                        .row_tiles = PRODUCTS_ROW_TILES,
                                        .share = 1,
                                        .block_n = PRODUCTS_KEYS,
                                        .stages = 1,
                                        .blocks = 1,
                                        .copy_bytes = 16,
                                        .staged = true};
}
}  // namespace onepass
#include "cuda/mma/products_f32.cuh"

#include "cuda/sm80/forward/products.cuh"
#undef onepass
#undef asm
#undef volatile

namespace emulated_products::sm80 {
namespace {

constexpr double kUnit = 0x1p-24;
float operand(float x) { return features.tf32 ? onepass::round_to_tf32(x) : x; }
constexpr int kWarp = 2, kQk = features.dim_qk, kV = features.dim_v;

struct Errors {  // as shares of u times what the terms can add up to
  double largest = 0, mean = 0, towards_zero = 0, of_a_chain = 0;
  long count = 0;
  void add(double got, double chain, double exact, double terms) {
    const double e = (got - exact) / (kUnit * terms);
    largest = std::max(largest, std::abs(e));
    mean += std::abs(e);
    towards_zero -= exact > 0 ? e : -e;
    of_a_chain += std::abs(chain - exact) / (kUnit * terms);
    ++count;
  }
  void close() {
    const auto n = static_cast<double>(count);
    mean /= n, towards_zero /= n, of_a_chain /= n;
  }
};

struct Block {
  std::vector<float> q, k, v, w;  // w: weights of the warp's rows

  explicit Block(float offset) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, int n, auto of) {
      x.resize(static_cast<std::size_t>(n));
      for (float& e : x) e = of(normal(random));
    };
    fill(q, kBlockM * kQk, [&](float x) { return x + offset; });
    fill(k, kBlockN * kQk, [&](float x) { return x + offset; });
    fill(v, kBlockN * kV, [](float x) { return x + 0.5f; });
    fill(w, kWarpRows * kBlockN, [](float x) { return std::exp(-3 * std::abs(x)); });
    store(kLayout.q, kLayout.q_pitch, kQk, q);
    store(kLayout.k, kLayout.k_pitch, kQk, k);
    store(kLayout.v, kLayout.v_pitch, kV, v);
  }
  void store(int at, int pitch, int dim, const std::vector<float>& x) {  // as TileCopy does
    for (u32 i = 0; i < x.size(); ++i) {
      const u32 row = i / static_cast<u32>(dim), byte = i % static_cast<u32>(dim) * 4;
      std::memcpy(smem + static_cast<u32>(at) + swizzled(row, byte / 16, static_cast<u32>(pitch)) + byte % 16, &x[i],
                  4);
    }
  }
};

struct Results {
  float s[kRowTiles][kBlockN / 2], o[kRowTiles][kOutN / 2];
};
// Element j of a lane's fragment: row g or g + 8 of sixteen, column 8 (j / 4) + 2 t + j % 2.
int row_of(int lane, int tile, int j) { return 16 * tile + lane / 4 + j / 2 % 2 * 8; }
int column_of(int lane, int j) { return j / 4 * 8 + lane % 4 * 2 + j % 2; }

void run_warp(const Block& block, std::vector<Results>& results) {
  results.assign(32, {});
  warps::run_block(32 * (kWarp + 1), [&] {
    if (threadIdx.x / 32 != kWarp) return;
    const int lane = static_cast<int>(threadIdx.x % 32);
    Results& r = results[static_cast<std::size_t>(lane)];
    const QueryOperand query{kLayout.q};
    issue_scores(r.s, query, kLayout.k, 0);
    Weights<kBlockN> w[kRowTiles];
    for (int t = 0; t < kRowTiles; ++t) {
      for (int j = 0; j < kBlockN / 2; ++j)
        w[t][j] = block.w[static_cast<std::size_t>(row_of(lane, t, j) * kBlockN + column_of(lane, j))];
    }
    issue_accumulate(r.o, w, kLayout.v);
  });
}

void judge(float offset) {
  const Block block(offset);
  std::vector<Results> results;
  run_warp(block, results);
  Errors scores, values;
  for (int lane = 0; lane < 32; ++lane) {
    const Results& r = results[static_cast<std::size_t>(lane)];
    for (int t = 0; t < kRowTiles; ++t) {
      for (int j = 0; j < kBlockN / 2; ++j) {
        const float* q_row = &block.q[static_cast<std::size_t>((kWarp * kWarpRows + row_of(lane, t, j)) * kQk)];
        const float* k_row = &block.k[static_cast<std::size_t>(column_of(lane, j) * kQk)];
        double exact = 0, qq = 0, kk = 0;
        float chain = 0;
        for (int d = 0; d < kQk; ++d) {
          const float q = operand(q_row[d]), k = operand(k_row[d]);
          exact += static_cast<double>(q) * k;
          chain = std::fma(q, k, chain);
          qq += q * q, kk += k * k;
        }
        scores.add(r.s[t][j], chain, exact, std::sqrt(qq * kk));
      }
      for (int j = 0; j < kOutN / 2; ++j) {
        const int column = column_of(lane, j);
        if (column >= kV) {
          EXPECT_EQ(r.o[t][j], 0.0f);
          continue;
        }
        double exact = 0, terms = 0;
        float chain = 0;
        for (int n = 0; n < kBlockN; ++n) {
          const float w = operand(block.w[static_cast<std::size_t>(row_of(lane, t, j) * kBlockN + n)]);
          const float v = operand(block.v[static_cast<std::size_t>(n * kV + column)]);
          exact += static_cast<double>(w) * v;
          terms += std::abs(w * v);
          chain = std::fma(w, v, chain);
        }
        values.add(r.o[t][j], chain, exact, terms);
      }
    }
  }
  scores.close();
  values.close();
  // The rest of the rest of a number (its last bit) and lo lo are all that is dropped; d 1 has nothing to hide it.
  EXPECT_LE(scores.mean, 1.5 * scores.of_a_chain + 0.7);
  EXPECT_LE(scores.largest, 7);
  EXPECT_LE(values.towards_zero, 1.5);
  EXPECT_LE(values.largest, 7);
  std::printf("  scores: %.2f of u |q||k|, a chain %.2f; at most %.2f; P V: towards 0 by %.2f, at most %.2f\n",
              scores.mean, scores.of_a_chain, scores.largest, values.towards_zero, values.largest);
}

// Every number that mma.sync tells apart and the places around the middle between two. NaN of every kind, which a sum
// of bits loses, stays NaN, and what is not finite once it is rounded becomes NaN.
TEST(Products32, AnOperandOfTf32IsRoundedToNearest) {
  const auto seen = [](u32 bits) { return std::bit_cast<float>(bits & 0xffffe000u); };
  for (u32 high = 0; high < 1u << 19; ++high) {
    for (const u32 low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) {
      const float x = std::bit_cast<float>(high << 13 | low), want = onepass::round_to_tf32(x);
      const float got = seen(mma::rounded(x));
      if (std::isfinite(want))
        ASSERT_EQ(got, want) << std::hexfloat << x;
      else
        ASSERT_TRUE(std::isnan(got)) << std::hex << (high << 13 | low);
    }
  }
}
TEST(Products32, SignsMixed) { judge(0); }
TEST(Products32, OneSign) { judge(3); }  // sums grow all the way: truncation shows

}  // namespace
}  // namespace emulated_products::sm80
