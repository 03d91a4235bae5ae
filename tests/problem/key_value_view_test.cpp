// Where keys and values lie: the view against the tensors' own strides, run by run.
#include <gtest/gtest.h>

#include <vector>

#include "problem/attention/key_value_view.hpp"

namespace onepass {
namespace {

void expect_same(const Tensor& t, const Sequence& seq, std::int64_t heads) {
  const KeyValueView view(t, seq);
  const auto* data = static_cast<const float*>(t.data);
  for (std::int64_t h = 0; h < heads; ++h) {
    std::int64_t tokens = 0;
    view.each_run<float>(h, 1, seq.seq_k - 1, [&](const auto& run, std::int64_t before) {
      EXPECT_EQ(before, tokens);
      for (std::int64_t i = 0; i < run.tokens; ++i, ++tokens) {
        const std::int64_t token = 1 + tokens;
        const float* row = data + row_offset(t, seq.batch, h, seq.k_begin + token);
        EXPECT_EQ(run.row + i * run.stride, row);
        EXPECT_EQ(view.row<float>(h, token), row);
        EXPECT_EQ(view.element(h, token, 2), row[2]);
      }
    });
    EXPECT_EQ(tokens, seq.seq_k - 1);
  }
}

TEST(KeyValueView, FollowsContiguousStridedAndPackedTensors) {
  std::vector<float> memory(2 * 3 * 5 * 8);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  Tensor t(memory.data(), DType::f32, {2, 3, 5, 4});
  expect_same(t, {1, 0, 0, 5, 5}, 3);
  t.stride = {120, 8, 24, 1};  // [batch, seq, heads, dim], rows apart
  expect_same(t, {1, 0, 0, 5, 5}, 3);
  t.stride = {0, 40, 0, 1};  // one token again and again
  expect_same(t, {1, 0, 0, 5, 5}, 3);
  t = Tensor(memory.data() + 32, DType::f32, {2, 3, 5, 4});
  t.stride = {60, 20, -8, 1};  // backwards
  t.shape[1] = 1;
  expect_same(t, {0, 0, 0, 5, 5}, 1);
  const Tensor packed(memory.data(), DType::f32, {10, 3, 4});
  expect_same(packed, {0, 2, 3, 4, 6}, 3);
}

TEST(KeyValueView, FollowsPages) {
  std::vector<float> memory(6 * 4 * 3 * 8);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  Tensor t(memory.data(), DType::f32, {6, 4, 3, 5});  // pages, tokens, heads, dim
  t.stride = {4 * 3 * 8, 3 * 8, 8, 1};
  const std::vector<std::int32_t> table = {5, -1, 0, -1, 3, -1};  // every other entry
  Sequence seq{1, 0, 0, 1, 10};
  seq.pages = {table.data(), 2, 4};
  const KeyValueView view(t, seq);
  for (std::int64_t h = 0; h < 3; ++h) {
    std::vector<std::int64_t> runs;
    view.each_run<float>(h, 1, 9, [&](const auto& run, std::int64_t before) {
      runs.push_back(run.tokens);
      for (std::int64_t i = 0; i < run.tokens; ++i) {
        const std::int64_t token = 1 + before + i, page = table[static_cast<std::size_t>(token / 4 * 2)];
        const float* row = memory.data() + ((page * 4 + token % 4) * 3 + h) * 8;
        EXPECT_EQ(run.row + i * run.stride, row);
        EXPECT_EQ(view.row<float>(h, token), row);
        EXPECT_EQ(view.element(h, token, 2), row[2]);
      }
    });
    EXPECT_EQ(runs, (std::vector<std::int64_t>{3, 4, 2}));
  }
}

}  // namespace
}  // namespace onepass
