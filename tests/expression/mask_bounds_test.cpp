// The states of tiles against their elements: under many masks, and under random programs.
#include "expression/mask_bounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "expression/mask_band.hpp"
#include "expression/scalar.hpp"
#include "support/random_mask.hpp"

namespace onepass {
namespace {

constexpr int kRows = 24, kKeys = 40, kHeads = 3, kBatch = 2;

struct Buffers {
  std::vector<std::int32_t> doc = std::vector<std::int32_t>(kKeys), ids = std::vector<std::int32_t>(kBatch * kKeys);
  std::vector<float> table = std::vector<float>(kHeads * 17);
  bool flags[5] = {true, false, true, true, true};
  std::int32_t limit[kBatch] = {30, 7};

  explicit Buffers(std::mt19937& random) {
    for (std::size_t i = 0; i < doc.size(); ++i) doc[i] = static_cast<std::int32_t>(i * i / 200);
    for (auto& x : ids) x = static_cast<std::int32_t>(random() % 7) - 3;
    const float kinds[] = {0, -0.0f, 1, -2.5f, std::numeric_limits<float>::infinity(), std::nanf(""), 3e38f, 1e-40f};
    for (float& x : table) x = kinds[random() % 8];
  }
  std::vector<NamedTensor> tensors() const {
    return {{"doc", ConstTensor(doc.data(), DType::i32, {kKeys})},
            {"ids", ConstTensor(ids.data(), DType::i32, {kBatch, kKeys})},
            {"table", ConstTensor(table.data(), DType::f32, {kHeads, 17})},
            {"flags", ConstTensor(flags, DType::boolean, {5})},
            {"limit", ConstTensor(limit, DType::i32, {kBatch})}};
  }
  std::vector<ModBuffer> specs() const {
    std::vector<ModBuffer> out;
    for (const auto& [name, t] : tensors()) out.push_back({name, t.dtype, t.rank, t.shape});
    return out;
  }
};

// Every element, by the oracle's arithmetic or a kernel's.
template <class F>
std::vector<bool> elements(const Expression& mask, const std::vector<NamedTensor>& buffers) {
  std::vector<F> numbers(mask.steps.size() * kExprBlock), scores(kKeys);
  std::vector<std::int32_t> integers(mask.steps.size() * kExprBlock);
  std::vector<bool> seen;
  for (std::int32_t b = 0; b < kBatch; ++b) {
    for (std::int32_t h = 0; h < kHeads; ++h) {
      for (std::int32_t row = 0; row < kRows; ++row) {
        std::fill(scores.begin(), scores.end(), F(1));
        const ExprTile<F> tile{scores.data(), 1, 1, kKeys, b, 0, &h, &row};
        ExprRun<F, ScalarFunctions>(mask, buffers, {numbers.data(), integers.data()}).hide(tile, F(0));
        for (const F x : scores) seen.push_back(x != 0);
      }
    }
  }
  return seen;
}
// How many of a box's elements are visible.
std::int64_t visible(const std::vector<bool>& seen, const MaskBox& x) {
  std::int64_t count = 0;
  for (std::int64_t b = x.batch_lo; b <= x.batch_hi; ++b)
    for (std::int64_t h = x.head_lo; h <= x.head_hi; ++h)
      for (std::int64_t i = x.row_lo; i <= x.row_hi; ++i)
        for (std::int64_t j = x.key_lo; j <= x.key_hi; ++j)
          count += seen[static_cast<std::size_t>(((b * kHeads + h) * kRows + i) * kKeys + j)];
  return count;
}
std::int64_t size_of(const MaskBox& x) {
  return (x.batch_hi - x.batch_lo + 1) * (x.head_hi - x.head_lo + 1) * (x.row_hi - x.row_lo + 1) *
         (x.key_hi - x.key_lo + 1);
}

struct Counts {
  int skip = 0, full = 0, partial = 0;
};
// Throws out a tile that is called empty or full and is not. Counts the tiles of rows x keys.
Counts check(const std::string& text, const Buffers& data, std::int64_t rows, std::int64_t keys,
             std::int64_t most = 1 << 20) {
  const auto buffers = data.tensors();
  const Expression mask = read_expression(ModKind::mask, text, data.specs());
  const std::vector<bool> exact = elements<double>(mask, buffers), single = elements<float>(mask, buffers);
  const MaskBounds bounds(mask, buffers, most);
  Counts counts;
  const auto look = [&](const MaskBox& box, Tile tile) {
    for (const std::vector<bool>* seen : {&exact, &single}) {
      const std::int64_t n = visible(*seen, box);
      const bool right = tile == Tile::skip ? n == 0 : tile == Tile::full ? n == size_of(box) : true;
      EXPECT_TRUE(right) << text << ": rows " << box.row_lo << " to " << box.row_hi << ", keys " << box.key_lo << " to "
                         << box.key_hi << " called " << (tile == Tile::skip ? "empty" : "full") << ", " << n << " of "
                         << size_of(box) << " visible";
    }
    ++(tile == Tile::skip ? counts.skip : tile == Tile::full ? counts.full : counts.partial);
  };
  for (const bool shared : {false, true}) {  // of one head, or of all heads and batch entries at once
    for (std::int64_t bh = 0; bh < (shared ? 1 : kBatch * kHeads); ++bh) {
      MaskBox box{bh / kHeads, bh / kHeads, bh % kHeads, bh % kHeads, 0, kRows - 1, 0, kKeys - 1};
      if (shared) box.batch_hi = kBatch - 1, box.head_hi = kHeads - 1;
      const std::int64_t wide = (kKeys + keys - 1) / keys;
      std::vector<Tile> tiles(static_cast<std::size_t>(kRows * wide));
      bounds.classify_tiles(box, rows, keys, tiles.data(), wide);
      for (std::int64_t row = 0; row < kRows; row += rows) {
        for (std::int64_t key = 0; key < kKeys; key += keys) {
          MaskBox tile = box;
          tile.row_lo = row, tile.row_hi = std::min<std::int64_t>(row + rows, kRows) - 1;
          tile.key_lo = key, tile.key_hi = std::min<std::int64_t>(key + keys, kKeys) - 1;
          look(tile, tiles[static_cast<std::size_t>(row / rows * wide + key / keys)]);
          look(tile, bounds.classify(tile));
        }
      }
    }
  }
  return counts;
}

TEST(MaskBounds, CallsNoTileEmptyOrFullThatIsNot) {
  std::mt19937 random(1);
  const Buffers data(random);
  Counts all;
  for (int i = 0; i < 600; ++i) {
    const std::string text = test::RandomMask(random).mask(1 + i % 4);
    const Counts found = check(text, data, 1 + random() % 9, 1 + random() % 9, i % 5 == 0 ? 20 : 1 << 20);
    all.skip += found.skip, all.full += found.full, all.partial += found.partial;
    if (HasFailure()) return;
  }
  EXPECT_GT(all.skip, all.partial / 10);  // the programs say something
  EXPECT_GT(all.full, all.partial / 10);
}

// Masks that people write: every tile that an interval can tell is told.
TEST(MaskBounds, TellsTheTilesOfCommonMasks) {
  std::mt19937 random(2);
  const Buffers data(random);
  for (const char* text :
       {"q_index >= k_index", "q_index >= k_index && q_index - k_index < 9", "abs(q_index - k_index) <= 5",
        "doc[q_index] == doc[k_index]", "doc[q_index] == doc[k_index] && q_index >= k_index",
        "k_index < limit[batch] || k_index <= q_index", "q_index / 8 == k_index / 8",
        "k_index < 4 || q_index - k_index < 8", "float(q_index) * 0.5f >= float(k_index)", "head == 0 || k_index < 10",
        "!(k_index > q_index)", "(q_index >> 3) >= (k_index >> 3)",
        "k_index < limit[batch] ? true : k_index == q_index"}) {
    const auto buffers = data.tensors();
    const Expression mask = read_expression(ModKind::mask, text, data.specs());
    const std::vector<bool> seen = elements<double>(mask, buffers);
    const MaskBounds bounds(mask, buffers, 1 << 20);
    for (std::int64_t bh = 0; bh < kBatch * kHeads; ++bh) {
      for (std::int64_t row = 0; row < kRows; row += 4) {
        for (std::int64_t key = 0; key < kKeys; key += 4) {
          const MaskBox box{bh / kHeads, bh / kHeads, bh % kHeads, bh % kHeads, row, row + 3, key, key + 3};
          const std::int64_t n = visible(seen, box);
          const Tile want = n == 0 ? Tile::skip : n == size_of(box) ? Tile::full : Tile::partial;
          EXPECT_EQ(bounds.classify(box), want) << text << " row " << row << " key " << key;
        }
      }
    }
  }
}

// A band that is read out of a mask shows every element that the mask shows, and no other if it is the whole mask.
TEST(MaskBand, IsWhatTheMaskSays) {
  std::mt19937 random(5);
  const Buffers data(random);
  struct Case {
    const char* text;
    std::int64_t left, right;
    bool whole;
  };
  for (const Case& c :
       {Case{"q_index >= k_index", -1, 0, true}, Case{"k_index < q_index + 4", -1, 3, true},
        Case{"q_index >= k_index && q_index - k_index < 9", 8, 0, true},
        Case{"q_index >= k_index & k_index > q_index - 5", 4, 0, true}, Case{"abs(q_index - k_index) <= 3", 3, 3, true},
        Case{"abs(k_index - q_index - 2) < 7", 4, 8, true}, Case{"-k_index + q_index >= -2 && true", -1, 2, true},
        Case{"true", -1, -1, true},
        Case{"doc[q_index] == doc[k_index] && q_index >= k_index && abs(q_index - k_index) <= 30", 30, 0, false},
        Case{"q_index >= k_index && q_index > k_index", -1, 0, false},
        Case{"q_index >= k_index || k_index < 4", -1, -1, false}, Case{"k_index < 20", -1, -1, false},
        Case{"2 * q_index >= k_index", -1, -1, false}, Case{"float(q_index) >= k_index", -1, -1, false},
        Case{"!(q_index < k_index)", -1, -1, false}, Case{"q_index >= k_index ? true : true", -1, -1, true},
        Case{"abs(q_index - k_index) <= head", -1, -1, false}}) {
    const Expression mask = read_expression(ModKind::mask, c.text, data.specs());
    const MaskBand band = band_of(mask);
    EXPECT_EQ(band.left, c.left) << c.text;
    EXPECT_EQ(band.right, c.right) << c.text;
    EXPECT_EQ(band.whole, c.whole) << c.text;
    const std::vector<bool> seen = elements<double>(mask, data.tensors());
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i / kKeys % kRows), key = static_cast<std::int64_t>(i % kKeys);
      const bool in = (band.left < 0 || key >= row - band.left) && (band.right < 0 || key <= row + band.right);
      ASSERT_TRUE(in || !seen[i]) << c.text << " " << row << " " << key;
      ASSERT_TRUE(in == seen[i] || !c.whole) << c.text << " " << row << " " << key;
    }
  }
}

// Runs of a buffer of any length, against its elements.
TEST(BufferBounds, AreThoseOfEveryRun) {
  std::mt19937 random(3);
  for (const int length : {1, 2, 15, 16, 17, 31, 33, 64, 100, 257}) {
    std::vector<std::int32_t> x(static_cast<std::size_t>(3 * length));
    for (auto& i : x) i = static_cast<std::int32_t>(random() % 1000);
    const ConstTensor tensor(x.data(), DType::i32, {3, length});
    const BufferBounds read(tensor, 1 << 20), when_asked(tensor, 0);
    for (int lo = 0; lo < length; ++lo) {
      for (int hi = lo; hi < length; ++hi) {
        const interval::Bounds at[] = {interval::just(1), interval::between(lo, hi)};
        const auto [least, most] = std::minmax_element(x.begin() + length + lo, x.begin() + length + hi + 1);
        for (const BufferBounds* bounds : {&read, &when_asked}) {
          const interval::Bounds found = bounds->of(at);
          EXPECT_EQ(found.lo, *least) << length << ": " << lo << " to " << hi;
          EXPECT_EQ(found.hi, *most) << length << ": " << lo << " to " << hi;
        }
      }
    }
  }
}

}  // namespace
}  // namespace onepass
