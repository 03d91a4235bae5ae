// Philox 4x32-10 against the known answers of Random123 1.14.0 (kat_vectors), and the dropout mask made of it.
#include "algebra/philox.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>

namespace onepass {
namespace {

void expect_words(const PhiloxBlock& b, unsigned w0, unsigned w1, unsigned w2, unsigned w3) {
  EXPECT_EQ(b.word[0], w0);
  EXPECT_EQ(b.word[1], w1);
  EXPECT_EQ(b.word[2], w2);
  EXPECT_EQ(b.word[3], w3);
}

TEST(Philox, KnownAnswers) {
  expect_words(philox(PhiloxKeys::of(0), 0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  expect_words(philox(PhiloxKeys::of(~0ull), ~0u, ~0u, ~0u, ~0u), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  expect_words(philox(PhiloxKeys::of(0x299f31d0a4093822ull), 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344),
               0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Dropout, OneBlockServesFourColumns) {
  const Dropout d = Dropout::of(0.5f, 42);
  for (unsigned column = 0; column < 64; ++column) {
    const unsigned draw = philox(PhiloxKeys::of(42), column / 4, 7, 3, 2).word[column % 4];
    EXPECT_EQ(d.factor(2, 3, 7, column), draw >= 0x80000000u ? 2.0f : 0.0f);
  }
}

TEST(Dropout, EndsOfTheScale) {
  const Dropout none = Dropout::of(0, 1), all = Dropout::of(1, 1);
  EXPECT_FALSE(none.active());
  EXPECT_TRUE(all.active());
  EXPECT_TRUE(none.kept(0));
  EXPECT_FALSE(all.kept(~0u));
  EXPECT_EQ(all.last_dropped(), ~0u);
  EXPECT_EQ(Dropout::of(0.5f, 1).last_dropped(), 0x7fffffffu);
  EXPECT_EQ(none.factor(0, 0, 0, 0), 1.0f);
  EXPECT_EQ(all.factor(0, 0, 0, 0), 0.0f);
}

// The share dropped, and of pairs dropped together in each direction, within 5 standard deviations.
TEST(Dropout, StatisticsOfTheMask) {
  constexpr unsigned kSide = 512;
  for (float p : {0.1f, 0.25f, 0.9f}) {
    const Dropout d = Dropout::of(p, 1234);
    const auto dropped = [&](unsigned b, unsigned h, unsigned i, unsigned j) { return d.factor(b, h, i, j) == 0.0f; };
    double single = 0, pairs[4] = {};
    for (unsigned i = 0; i < kSide; ++i) {
      for (unsigned j = 0; j < kSide; ++j) {
        const bool here = dropped(0, 0, i, j);
        single += here;
        pairs[0] += here && dropped(0, 0, i, j + 1);
        pairs[1] += here && dropped(0, 0, i + 1, j);
        pairs[2] += here && dropped(0, 1, i, j);
        pairs[3] += here && dropped(1, 0, i, j);
      }
    }
    const double n = kSide * kSide, q = static_cast<double>(p);
    EXPECT_NEAR(single / n, q, 5 * std::sqrt(q * (1 - q) / n)) << p;
    for (double together : pairs) EXPECT_NEAR(together / n, q * q, 7 * std::sqrt(q * q * (1 - q * q) / n)) << p;
  }
}

TEST(Dropout, OfAPartIsThatOfTheWhole) {
  const Dropout whole = Dropout::of(0.5f, 3);
  Dropout part = whole;
  part.first_batch = 1, part.first_head = 2, part.first_row = 70, part.first_block = 5;
  int kept = 0;
  for (unsigned i = 0; i < 40; ++i) {
    for (unsigned j = 0; j < 40; ++j) {
      EXPECT_EQ(part.factor(2, 3, i, j), whole.factor(3, 5, 70 + i, 20 + j)) << i << " " << j;
      kept += part.factor(2, 3, i, j) != 0;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 40 * 40);
}

TEST(Dropout, EveryCoordinateAndTheSeedMatter) {
  std::set<std::tuple<unsigned, unsigned, unsigned, unsigned>> blocks;
  int n = 0;
  for (unsigned long long seed : {0ull, 1ull, 1ull << 32}) {
    for (unsigned b = 0; b < 3; ++b) {
      for (unsigned h = 0; h < 3; ++h) {
        for (unsigned i = 0; i < 3; ++i) {
          for (unsigned c = 0; c < 3; ++c, ++n) {
            const PhiloxBlock block = Dropout::of(0.5f, seed).draws(b, h, i, c);
            blocks.insert({block.word[0], block.word[1], block.word[2], block.word[3]});
          }
        }
      }
    }
  }
  EXPECT_EQ(static_cast<int>(blocks.size()), n);
}

}  // namespace
}  // namespace onepass
