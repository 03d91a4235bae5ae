// The packed mask without a GPU: the device source runs on the host, against the mask itself.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "algebra/philox.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "mask_patterns.hpp"
#include "on_host/mask_source.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/problem.hpp"

namespace onepass {
namespace {

using Pattern = test::MaskPattern;

struct Mask {  // bytes in memory, padded and with a byte between keys if `odd`
  Mask(const Problem& p, const Pattern& pattern, bool odd) {
    const BroadcastDims& s = *p.bool_mask;
    shape = {s.batch ? p.batch : 1, s.heads ? p.heads_q : 1, s.rows ? p.seq_q : 1, s.keys ? p.seq_k : 1};
    const std::int64_t key = odd ? 2 : 1, row = shape[3] * key + (odd ? 5 : 0);
    bytes.assign(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * row), 1);
    tensor = Tensor(bytes.data(), DType::boolean, {shape[0], shape[1], shape[2], shape[3]},
                    {shape[1] * shape[2] * row, shape[2] * row, row, key});
    std::mt19937 random(3);
    for (std::int64_t b = 0; b < shape[0]; ++b)
      for (std::int64_t h = 0; h < shape[1]; ++h)
        for (std::int64_t i = 0; i < shape[2]; ++i)
          for (std::int64_t j = 0; j < shape[3]; ++j)
            at(b, h, i, j) = pattern.sees(static_cast<int>(i + 37 * b), static_cast<int>(j + 64 * h), random());
  }
  unsigned char& at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    const auto of = [&](std::int64_t x, int d) { return (shape[d] == 1 ? 0 : x) * tensor.stride[d]; };
    return bytes[static_cast<std::size_t>(of(b, 0) + of(h, 1) + of(i, 2) + of(j, 3))];
  }
  Dims shape;
  std::vector<unsigned char> bytes;
  Tensor tensor;
};

class EmulatedMask : public testing::TestWithParam<const char*> {};

TEST_P(EmulatedMask, KernelsVisitAndKeepWhatItShows) {
  Problem p = parse_problem(GetParam());
  const cuda::TileShape tile{128, 64, 8};
  const auto band = [&](int side) { return side < 0 ? -1 : side; };
  const int right = p.band.causal ? 0 : static_cast<int>(p.band.right), left = static_cast<int>(p.band.left);
  const int shift = static_cast<int>(p.seq_k - p.seq_q);
  bool odd = false;
  for (const Pattern& pattern : test::kMaskPatterns) {
    Mask mask(p, pattern, odd = !odd);
    p.layout.bool_mask = broadcast_strides(mask.tensor);
    std::vector<unsigned> workspace(cuda::mask_bytes(p, tile) / 4 + 16,
                                    0xdeadbeef);  // never read where nothing is written
    const cuda::MaskPlan plan = cuda::plan_mask(p, tile).at(mask.tensor.data, workspace.data());
    warps::pack(&plan.pack);
    const warps::MaskCase c{static_cast<int>(p.batch),
                            static_cast<int>(p.heads_q),
                            static_cast<int>(p.seq_q),
                            static_cast<int>(p.seq_k),
                            band(left),
                            band(right),
                            &plan.bits};
    const auto sees = [&](const warps::Walk& w, int row, int key) {
      const int at = row + shift;
      return row < p.seq_q && key < p.seq_k && (right < 0 || key <= at + right) && (left < 0 || key >= at - left) &&
             mask.at(w.batch, w.head, row, key) != 0;
    };
    const int tiles = static_cast<int>((p.seq_q + 127) / 128 * p.heads_q * p.batch);
    for (int t = 0; t < tiles; ++t) {
      const warps::Walk walk = warps::walk_of(c, t);
      const std::set<int> visited(walk.blocks.begin(), walk.blocks.end());
      ASSERT_EQ(visited.size(), walk.blocks.size());
      for (int n = 0; n * 64 < p.seq_k; ++n) {
        bool shown = false;  // by the mask alone, to a row of the tile
        bool seen = false;   // by the band too
        for (int i = walk.row; i < walk.row + 128 && i < p.seq_q; ++i) {
          for (int j = 64 * n; j < 64 * (n + 1) && j < p.seq_k; ++j) {
            shown = shown || mask.at(walk.batch, walk.head, i, j) != 0;
            seen = seen || sees(walk, i, j);
          }
        }
        if (seen) {
          EXPECT_TRUE(visited.contains(n)) << pattern.name << " tile " << t << " block " << n;
        }
        if (!shown) {
          EXPECT_FALSE(visited.contains(n)) << pattern.name << " tile " << t << " block " << n;
        }
      }
      if (t % 4 != 0) continue;  // a quarter of the tiles, score by score
      for (const int warp : {1, 7}) {
        const int first = walk.row + 16 * warp;
        const auto kept = warps::visible(c, walk, first);
        for (std::size_t b = 0; b < walk.blocks.size(); ++b) {
          for (int i = 0; i < 16 && first + i < p.seq_q; ++i)
            for (int j = 0; j < 64; ++j)
              ASSERT_EQ(kept[b][static_cast<std::size_t>(64 * i + j)] != 0,
                        sees(walk, first + i, 64 * walk.blocks[b] + j))
                  << pattern.name << " row " << first + i << " key " << 64 * walk.blocks[b] + j;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lines, EmulatedMask,
                         testing::Values("fwd b2 h2 s300x200 d64 bf16 mask=bhqk",
                                         "fwd b1 h2 s260x700 d64 bf16 mask=11qk",
                                         "fwd b2 h1 s200 d64 bf16 mask=b11k causal_bottom_right",
                                         "fwd b1 h2 s129x513 d64 bf16 mask=1hqk window=150:20",
                                         "fwd b2 h1 s300 d64 bf16 mask=b1q1"));

// Tiles of 16 rows would overwrite each other's state: d512 on devices with 99 KiB of shared memory has such tiles.
TEST(EmulatedMaskStates, AStateIsThatOfAll64Rows) {
  const Problem p = parse_problem("fwd b1 h1 s128x64 d512 bf16 mask=11qk");
  for (const int rows : {16, 32, 64}) {
    std::vector<unsigned char> mask(128 * 64, 0);
    std::fill_n(mask.begin() + 64 * 70, 64, 1);  // row 70 alone sees keys
    std::vector<unsigned> workspace(cuda::mask_bytes(p, {rows, 32, 0}) / 4 + 16, 0xdeadbeef);
    Problem strided = p;
    strided.layout.bool_mask = {0, 0, 64, 1};
    const cuda::MaskPlan plan = cuda::plan_mask(strided, {rows, 32, 0}).at(mask.data(), workspace.data());
    warps::pack(&plan.pack);
    EXPECT_EQ(plan.pack.tiles[plan.pack.tile_stride[2]], kSomeMasked) << rows << " rows";
    EXPECT_EQ(plan.pack.tiles[0], kAllMasked) << rows << " rows";
  }
}

TEST(EmulatedDropout, DropsWhatTheCpuDrops) {
  for (const float p : {0.1f, 0.5f, 1.0f}) {
    const Dropout dropout = Dropout::of(p, 77);
    const std::vector<char> kept = warps::kept(p, 77, 3, 5, 32, 128);
    for (unsigned i = 0; i < 16; ++i)
      for (unsigned j = 0; j < 64; ++j)
        ASSERT_EQ(kept[64 * i + j] != 0, dropout.factor(3, 5, 32 + i, 128 + j) != 0.0f) << p << " " << i << " " << j;
  }
}

// The stubs round 2^x and 1/x once; MUFU's last bit is what is left of the 4e-7.
TEST(EmulatedSoftcap, APairsTanhIsRightInAbsoluteTerms) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (float x = -30; x < 30; x += 0.0137f) {
    for (const float y : {0.0f, -x, 1e-6f, 20.0f, kInf, -kInf}) {
      const auto [a, b] = warps::tanh_of_pair(x, y);
      ASSERT_NEAR(a, std::tanh(x), 4e-7) << x << " " << y;
      ASSERT_NEAR(b, std::tanh(y), 4e-7) << x << " " << y;
    }
  }
  EXPECT_TRUE(std::isnan(warps::tanh_of_pair(std::nanf(""), 1).first));
}

}  // namespace
}  // namespace onepass
