// Exhaustive: what key_range and classify say of a tile against `visible`, element by element, for every small shape,
// band, alignment (top-left, bottom-right, and offsets on both sides of all keys) and tile.
#include "algebra/mask.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace onepass {
namespace {

template <class Visit>
void every_small_mask(Visit visit) {
  constexpr Index kSide = 5, kWindow = 6;
  for (Index seq_q = 0; seq_q <= kSide; ++seq_q) {
    for (Index seq_k = 0; seq_k <= kSide; ++seq_k) {
      for (Index left = -1; left <= kWindow; ++left) {
        for (Index right = -1; right <= kWindow; ++right) {
          for (Index shift = -kSide - 2; shift <= kSide + 2; ++shift) visit(BandMask{seq_q, seq_k, shift, left, right});
        }
      }
    }
  }
}

TEST(Mask, VisibleIsTheDefinition) {
  every_small_mask([](const BandMask& m) {
    for (Index i = 0; i < m.seq_q; ++i) {
      for (Index j = -1; j <= m.seq_k; ++j) {
        const Index at = i + m.shift;
        const bool expected =
            j >= 0 && j < m.seq_k && (m.left < 0 || j >= at - m.left) && (m.right < 0 || j <= at + m.right);
        ASSERT_EQ(m.visible(i, j), expected);
      }
    }
  });
}

TEST(Mask, KeyRangeIsTheHullOfWhatTheRowsSee) {
  every_small_mask([](const BandMask& m) {
    for (Index from = 0; from <= m.seq_q; ++from) {
      for (Index to = from; to <= m.seq_q; ++to) {
        Index lo = m.seq_k, hi = 0;
        for (Index i = from; i < to; ++i) {
          for (Index j = 0; j < m.seq_k; ++j) {
            if (m.visible(i, j)) lo = std::min(lo, j), hi = std::max(hi, j + 1);
          }
        }
        const Range r = m.key_range(from, to);
        if (lo >= hi) {
          ASSERT_GE(r.lo, r.hi) << m.seq_q << "x" << m.seq_k << " shift " << m.shift << " window " << m.left << ":"
                                << m.right << " rows " << from << ".." << to;
        } else {
          ASSERT_TRUE(r.lo == lo && r.hi == hi)
              << m.seq_q << "x" << m.seq_k << " shift " << m.shift << " window " << m.left << ":" << m.right << " rows "
              << from << ".." << to << " gives " << r.lo << ".." << r.hi << " for " << lo << ".." << hi;
        }
      }
    }
  });
}

// Tiles may reach beyond the last key.
TEST(Mask, ClassifySaysWhatTheElementsSay) {
  Index tiles[3] = {};
  every_small_mask([&](const BandMask& m) {
    for (Index from = 0; from <= m.seq_q; ++from) {
      for (Index to = from; to <= m.seq_q; ++to) {
        for (Index lo = 0; lo <= m.seq_k + 2; ++lo) {
          for (Index hi = lo; hi <= m.seq_k + 2; ++hi) {
            Index seen = 0;
            for (Index i = from; i < to; ++i) {
              for (Index j = lo; j < hi; ++j) seen += m.visible(i, j);
            }
            const Tile expected = seen == 0 ? Tile::skip : seen == (to - from) * (hi - lo) ? Tile::full : Tile::partial;
            ASSERT_EQ(m.classify(from, to, lo, hi), expected)
                << m.seq_q << "x" << m.seq_k << " shift " << m.shift << " window " << m.left << ":" << m.right
                << " rows " << from << ".." << to << " keys " << lo << ".." << hi;
            ++tiles[static_cast<int>(expected)];
          }
        }
      }
    }
  });
  for (Index n : tiles) EXPECT_GT(n, 10000);
}

// Numbers beyond any sequence, as kernels that count in 32 bits get them.
TEST(Mask, WithinItShowsTheSameKeys) {
  constexpr Index kFar[] = {0, 1, 2, 3, 5, 6, 7, 8, 40, Index{1} << 31, Index{1} << 60};
  for (Index seq_q = 0; seq_q <= 5; ++seq_q) {
    for (Index seq_k = 0; seq_k <= 5; ++seq_k) {
      for (Index shift : kFar) {
        for (Index left : kFar) {
          for (Index right : kFar) {
            for (int signs = 0; signs < 8; ++signs) {
              for (Index off : {-2, -1, 0, 1, 2}) {  // bands that end near a sequence, however far their middle
                const BandMask m{seq_q, seq_k, signs & 1 ? -shift : shift, signs & 2 ? -1 : left + 2 + off,
                                 signs & 4 ? -1 : right + 2 - off};
                for (Index most : {5, 9}) {
                  const BandMask n = m.within(most);
                  ASSERT_TRUE(n.shift >= -most && n.shift <= most && n.left <= 2 * most && n.right <= 2 * most);
                  ASSERT_TRUE((n.left < 0) == (m.left < 0) && (n.right < 0) == (m.right < 0));
                  for (Index i = 0; i < seq_q; ++i) {
                    for (Index j = 0; j < seq_k; ++j)
                      ASSERT_EQ(n.visible(i, j), m.visible(i, j))
                          << seq_q << "x" << seq_k << " shift " << m.shift << " window " << m.left << ":" << m.right
                          << " row " << i << " key " << j;
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace onepass
