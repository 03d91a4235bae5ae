// Every order of work visits each (row, key) that the band shows exactly once, and nothing twice.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "algebra/mask.hpp"
#include "base/text.hpp"
#include "on_host/orders_source.hpp"
#include "onepass/error.hpp"
#include "support/named_params.hpp"

namespace onepass {
namespace {

using warps::OrderCase;

// Empty, or what is wrong.
std::string wrong(const std::vector<warps::Block>& blocks, const OrderCase& c) {
  std::map<std::pair<int, int>, std::vector<int>> visits;  // by head and sequence, [row][key]
  for (const warps::Block& b : blocks) {
    const auto at = static_cast<std::size_t>(b.batch);
    const int rows = c.cu_q[at + 1] - c.cu_q[at], keys = c.cu_k[at + 1] - c.cu_k[at];
    if (b.head < 0 || b.head >= c.heads || b.row >= rows || b.key >= keys) return "a block lies outside";
    std::vector<int>& seen = visits[{b.head, b.batch}];
    seen.resize(static_cast<std::size_t>(rows * keys));
    for (int i = b.row; i < std::min(b.row_end, rows); ++i)
      for (int j = b.key; j < std::min(b.key_end, keys); ++j) ++seen[static_cast<std::size_t>(i * keys + j)];
  }
  for (int h = 0; h < c.heads; ++h) {
    for (int s = 0; s < c.batch(); ++s) {
      const auto at = static_cast<std::size_t>(s);
      const int rows = c.cu_q[at + 1] - c.cu_q[at], keys = c.cu_k[at + 1] - c.cu_k[at];
      std::vector<int>& seen = visits[{h, s}];
      seen.resize(static_cast<std::size_t>(rows * keys));
      const BandMask band{rows, keys, c.align_bottom ? keys - rows : c.offset, c.left, c.right};
      for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < keys; ++j) {
          const int times = seen[static_cast<std::size_t>(i * keys + j)];
          if (times > 1 || (times == 0 && band.visible(i, j)))
            return text("head ", h, " sequence ", s, " row ", i, " key ", j, " is visited ", times, " times");
        }
      }
    }
  }
  return "";
}

std::vector<std::pair<std::vector<int>, std::vector<int>>> lengths(bool packed) {
  if (packed)
    return {{{0, 1, 40, 40, 73}, {0, 30, 37, 57, 57}}, {{0, 16, 33, 49}, {0, 8, 24, 90}}, {{0, 0, 5}, {0, 9, 9}}};
  return {{{0, 1, 2}, {0, 70, 140}},   {{0, 50, 100}, {0, 1, 2}}, {{0, 48, 96}, {0, 48, 96}},
          {{0, 33, 66}, {0, 61, 122}}, {{0, 61}, {0, 33}},        {{0, 17}, {0, 64}}};
}

class EmulatedOrder : public testing::TestWithParam<const warps::OrderSource*> {};

TEST_P(EmulatedOrder, VisitsWhatTheBandShowsOnce) {
  for (const auto& [cu_q, cu_k] : lengths(GetParam()->packed)) {
    for (const int left : {-1, 0, 7}) {
      for (const int right : {-1, 0, 30}) {
        for (const int offset : {0, 13, -21, -100, 1 << 20}) {  // the last: at the bottom
          const bool bottom = offset == 1 << 20;
          for (const int splits : {1, 3, 8}) {
            const OrderCase c{4, 2, cu_q, cu_k, left, right, bottom, bottom ? 0 : offset, splits};
            const std::string what = text("rows ", cu_q[1], " keys ", cu_k[1], " left ", left, " right ", right,
                                          " offset ", offset, " splits ", splits);
            ASSERT_EQ(wrong(GetParam()->key_splits(c), c), "") << what;
            if (splits > 1) continue;
            ASSERT_EQ(wrong(GetParam()->rows_outer(c), c), "") << what;
            ASSERT_EQ(wrong(GetParam()->keys_outer(c), c), "") << what;
          }
        }
      }
    }
  }
}

// In a square causal problem half of the blocks show nothing: they are not visited.
TEST_P(EmulatedOrder, LeavesOutWhatNoRowSees) {
  const OrderCase c{1, 1, {0, 160}, {0, 160}, -1, 0, true, 0, 2};
  std::size_t shown = 0;
  for (int m = 0; m < 160; m += warps::kOrderRows) shown += static_cast<std::size_t>((m / warps::kOrderKeys) + 2);
  EXPECT_EQ(GetParam()->rows_outer(c).size(), shown);
  EXPECT_EQ(GetParam()->keys_outer(c).size(), shown);
  EXPECT_EQ(GetParam()->key_splits(c).size(), shown);
}

INSTANTIATE_TEST_SUITE_P(Sources, EmulatedOrder, testing::Values(&warps::order_dense, &warps::order_packed),
                         [](const auto& source) { return std::string(source.param->name); });

}  // namespace
}  // namespace onepass
