// Block masks against the elements of their masks.
#include "onepass/block_mask.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "onepass/error.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

using Visible = std::function<bool(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)>;

enum class State { empty, mixed, full };
State state_of(const BlockMask& m, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t key) {
  const auto has = [](std::span<const std::int32_t> list, std::int64_t x) {
    return std::ranges::binary_search(list, static_cast<std::int32_t>(x));
  };
  const bool mixed = has(m.mixed.of(m.list(b, h, row)), key), full = has(m.full.of(m.list(b, h, row)), key);
  EXPECT_EQ(mixed, has(m.mixed_rows.of(m.list_of_rows(b, h, key)), row));
  EXPECT_EQ(full, has(m.full_rows.of(m.list_of_rows(b, h, key)), row));
  EXPECT_FALSE(mixed && full);
  return mixed ? State::mixed : full ? State::full : State::empty;
}
State by_elements(const BlockMaskShape& s, const Visible& visible, std::int64_t b, std::int64_t h, std::int64_t row,
                  std::int64_t key) {
  bool any = false, all = true;
  for (std::int64_t i = row * s.tile_q; i < std::min((row + 1) * s.tile_q, s.seq_q); ++i) {
    for (std::int64_t j = key * s.tile_k; j < std::min((key + 1) * s.tile_k, s.seq_k); ++j) {
      any = any || visible(b, h, i, j);
      all = all && visible(b, h, i, j);
    }
  }
  return all ? State::full : any ? State::mixed : State::empty;
}
// exact: every tile's state is that of its elements; else a mixed one may be any.
void check(const BlockMask& m, const Visible& visible, bool exact) {
  const BlockMaskShape& s = m.shape;
  std::int64_t empty = 0;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t row = 0; row < s.row_tiles(); ++row) {
        for (std::int64_t key = 0; key < s.key_tiles(); ++key) {
          const State found = state_of(m, b, h, row, key), want = by_elements(s, visible, b, h, row, key);
          empty += found == State::empty;
          if (!exact && found == State::mixed) continue;
          EXPECT_EQ(static_cast<int>(found), static_cast<int>(want)) << b << " " << h << " " << row << " " << key;
        }
      }
    }
  }
  EXPECT_EQ(empty, m.tiles() - m.mixed.count() - m.full.count());
}

TEST(BlockMask, OfATextHasTheTilesOfItsElements) {
  std::vector<std::int32_t> doc(300), prefix{50, 200};
  for (std::size_t i = 0; i < doc.size(); ++i) doc[i] = static_cast<std::int32_t>(i / 70);
  const std::vector<NamedTensor> buffers{{"doc", ConstTensor(doc.data(), DType::i32, {300})},
                                         {"prefix", ConstTensor(prefix.data(), DType::i32, {2})}};
  struct Case {
    const char* text;
    Visible visible;
  };
  const auto at = [&](std::int64_t i) { return doc[static_cast<std::size_t>(std::min<std::int64_t>(i, 299))]; };
  const Case cases[] = {
      {"true", [](auto...) { return true; }},
      {"false", [](auto...) { return false; }},
      {"q_index >= k_index", [](auto, auto, auto i, auto j) { return i >= j; }},
      {"q_index >= k_index && q_index - k_index < 40", [](auto, auto, auto i, auto j) { return i >= j && i - j < 40; }},
      {"doc[q_index] == doc[k_index]", [&](auto, auto, auto i, auto j) { return at(i) == at(j); }},
      {"k_index < prefix[batch] || q_index >= k_index",
       [&](auto b, auto, auto i, auto j) { return j < prefix[static_cast<std::size_t>(b)] || i >= j; }},
      {"(q_index + k_index) % 3 == head", [](auto, auto h, auto i, auto j) { return (i + j) % 3 == h; }},
  };
  for (const Case& c : cases) {
    for (const auto& [rows, keys] : {std::pair{16, 16}, {128, 128}, {7, 33}, {1, 300}}) {
      const BlockMaskShape shape{2, 3, 260, 300, rows, keys};
      for (const bool exact : {false, true}) {
        SCOPED_TRACE(c.text);
        check(block_mask(c.text, buffers, shape, exact), c.visible, exact);
      }
    }
  }
  const BlockMask documents = block_mask("doc[q_index] == doc[k_index]", buffers, {1, 1, 300, 300, 10, 10});
  EXPECT_EQ(documents.mixed.count(), 0);  // documents end where tiles do
  EXPECT_EQ(documents.full.count(), 4 * 49 + 4);
}

TEST(BlockMask, OfATensorHasTheTilesOfItsElements) {
  std::mt19937 random(4);
  std::vector<char> seen(2 * 50 * 61);
  for (char& x : seen) x = random() % 9 != 0;
  for (std::size_t i = 0; i < 50 * 20; ++i) seen[i] = i < 500;
  const ConstTensor mask(seen.data(), DType::boolean, {2, 50, 61});
  for (const auto& [rows, keys] : {std::pair{2, 3}, {16, 8}, {64, 64}})
    check(
        block_mask(mask, rows, keys),
        [&](auto, auto h, auto i, auto j) { return seen[static_cast<std::size_t>((h * 50 + i) * 61 + j)] != 0; }, true);
}

TEST(BlockMask, OfListsIsTheSameAgain) {
  const BlockMask m = block_mask("q_index >= k_index", {}, {1, 2, 100, 100, 16, 8});
  EXPECT_TRUE(block_mask(m.shape, m.mixed, m.full) == m);
  EXPECT_GT(m.sparsity(), 0.35);
  const auto refused = [&](TileLists mixed, TileLists full, const char* sentence) {
    test::expect_refused(
        [&] { static_cast<void>(block_mask({1, 1, 32, 32, 16, 16}, std::move(mixed), std::move(full))); }, sentence);
  };
  refused({{0, 1}, {0}}, {{0, 0, 0}, {}}, "mixed.begin must have 3 entries (got 2)");
  refused({{0, 1, 2}, {0}}, {{0, 0, 0}, {}}, "mixed.begin must ascend from 0 to the number of tiles, 1");
  refused({{0, 1, 1}, {2}}, {{0, 0, 0}, {}}, "list 0 of mixed must ascend within 2 tiles (got 2 after -1)");
  refused({{0, 2, 2}, {1, 1}}, {{0, 0, 0}, {}}, "list 0 of mixed must ascend within 2 tiles (got 1 after 1)");
  refused({{0, 1, 1}, {1}}, {{0, 1, 1}, {1}}, "tile 1 of list 0 must be mixed or full, not both");
}

TEST(BlockMask, StatesAreWrittenByAnyStrides) {
  std::vector<std::int32_t> doc(300);
  for (std::size_t i = 0; i < doc.size(); ++i) doc[i] = static_cast<std::int32_t>(i / 70);
  const std::vector<NamedTensor> buffers{{"doc", ConstTensor(doc.data(), DType::i32, {300})}};
  const BlockMaskShape s{2, 3, 260, 300, 16, 32};  // tiles: 17 x 10
  const char* const text = "doc[q_index] == doc[k_index] && k_index % (head + 1) == 0";
  for (const bool exact : {false, true}) {
    std::vector<std::int32_t> turned(2 * 3 * 17 * 10);
    block_mask_states(text, buffers, s, Tensor(turned.data(), DType::i32, {2, 3, 17, 10}, {510, 170, 1, 17}), exact);
    const std::vector<std::int32_t> want = block_mask(text, buffers, s, exact).states();
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(turned[i / 170 * 170 + i % 10 * 17 + i % 170 / 10], want[i]) << i;
  }
  std::int32_t one[4];
  const auto refused = [&](const Tensor& states, const std::vector<NamedTensor>& given, const char* sentence) {
    try {
      block_mask_states("true", given, {1, 1, 32, 32, 16, 16}, states);
      ADD_FAILURE() << sentence;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(sentence), std::string::npos) << e.what();
    }
  };
  refused(Tensor(one, DType::f32, {1, 1, 2, 2}), {}, "states must be int32 (got fp32)");
  refused(Tensor(one, DType::i32, {1, 1, 2, 1}), {}, "states must be [1, 1, 2, 2] (got [1, 1, 2, 1])");
  refused(Tensor(one, DType::i32, {1, 1, 2, 2}, {0, 0, 0, 1}), {}, "must not overlap itself");
  refused(Tensor(one, DType::i32, {1, 1, 2, 2}), {{"doc", ConstTensor(one, DType::i32, {4})}},
          "states must not share memory with mod buffer doc");
  refused(Tensor(one, DType::i32, {1, 1, 2, 2}, {DeviceKind::cuda, 1}), buffers,
          "the mod buffer doc must be on cuda:1, as states (got cpu)");
  refused({}, {}, "states must be given");
}

TEST(BlockMask, WhatDoesNotFitIsRefused) {
  EXPECT_THROW(static_cast<void>(block_mask("q_index", {}, {1, 1, 8, 8})), Error);
  EXPECT_THROW(static_cast<void>(block_mask("true", {}, {1, 1, 8, 8, 0, 16})), Error);
  EXPECT_THROW(static_cast<void>(block_mask("true", {}, {1, 1, -1, 8})), Error);
  EXPECT_THROW(static_cast<void>(block_mask("true", {{"doc", {}}}, {1, 1, 8, 8})), Error);
  const float numbers[4] = {};
  EXPECT_THROW(static_cast<void>(block_mask(ConstTensor(numbers, DType::f32, {2, 2}))), Error);
  EXPECT_EQ(block_mask("true", {}, {1, 1, 0, 0}).tiles(), 0);
}

}  // namespace
}  // namespace onepass
