// The merge's kernel without a GPU: the device source runs on the host and must give what cpu.merge gives, on rows that
// see nothing, NaN behind them, parts of any number, type, stride and alignment, and leave the gaps behind rows of out
// alone.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "algebra/numerics.hpp"
#include "cuda/merge/merge.hpp"
#include "on_host/merge_source.hpp"
#include "onepass/onepass.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "support/named_params.hpp"

namespace onepass {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// [batch, heads, rows, dim] (or without dim) in memory of its own, `offset` elements from a multiple of 64 bytes, the
// rows `gap` elements apart; poison around and between.
struct Memory {
  Memory(DType dtype, std::initializer_list<std::int64_t> shape, int offset, int gap, bool rows_first = false)
      : tensor(nullptr, dtype, shape) {
    const int last = tensor.rank - 1;
    std::int64_t step = tensor.rank == 4 ? tensor.shape[last] + gap : 1;
    std::vector<int> order{2, 1, 0};
    if (rows_first) order = {1, 0, 2};
    for (const int i : order) tensor.stride[i] = step, step *= tensor.shape[i];
    bytes.assign(static_cast<std::size_t>(step) * size_of(dtype) + 256, 0xff);
    auto* base = bytes.data();
    while (reinterpret_cast<std::uintptr_t>(base) % 64 != 0) ++base;
    tensor.data = base + static_cast<std::size_t>(offset) * size_of(dtype);
  }
  std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return b * tensor.stride[0] + h * tensor.stride[1] + i * tensor.stride[2];
  }
  std::vector<unsigned char> bytes;
  Tensor tensor;
};

struct Case {
  int parts, offset, gap;
  bool mixed, odd_strides;  // parts of several types; of several strides
  int into = -1;            // the part that the result is written into
};

void expect_as_on_the_cpu(const warps::MergeSource& text, const Case& c, unsigned seed) {
  const std::int64_t batch = 2, heads = 3, rows = 7, dim = text.dim;
  const DType input = dtype_from_name(text.input), output = dtype_from_name(text.output);
  std::mt19937 random(seed);
  std::normal_distribution<float> value(0.5f), score(0, 20);
  std::vector<Memory> outs, lses;
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
  for (int i = 0; i < c.parts; ++i) {
    const bool first = c.odd_strides && i % 2 == 1;
    outs.emplace_back(c.mixed && i > 0 ? kTypes[i % 3] : input,
                      std::initializer_list<std::int64_t>{batch, heads, rows, dim}, c.offset, c.gap, first);
    lses.emplace_back(DType::f32, std::initializer_list<std::int64_t>{batch, heads, rows}, 0, 0, first);
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t r = 0; r < rows; ++r) {
          // Row 0 sees nothing in any part, row 1 in the first alone; row 2's LSEs lie far out, row 3's is NaN.
          const bool empty = r == 0 || (r == 1 && i > 0) || random() % 4 == 0;
          const float lse = empty              ? -kInf
                            : r == 2           ? 3e4f + score(random)
                            : r == 3 && i == 0 ? std::nanf("")
                                               : score(random);
          static_cast<float*>(lses.back().tensor.data)[lses.back().at(b, h, r)] = lse;
          for (std::int64_t d = 0; d < dim && !empty; ++d)
            store_element(outs.back().tensor.data, outs.back().tensor.dtype, outs.back().at(b, h, r) + d,
                          value(random));
        }
  }
  Tensors t;
  for (const Memory& m : outs) t.outs.push_back(m.tensor);
  for (const Memory& m : lses) t.lses.push_back(m.tensor);
  Memory out(output, {batch, heads, rows, dim}, c.offset, c.gap), lse(DType::f32, {batch, heads, rows}, 0, 0, true);
  Memory expected(DType::f32, {batch, heads, rows, dim}, 0, 0), expected_lse(DType::f32, {batch, heads, rows}, 0, 0);
  onepass::merge(t.outs, t.lses, expected.tensor, expected_lse.tensor);
  if (c.into >= 0) std::swap(out, outs[c.into]), std::swap(lse, lses[c.into]);  // memory moves with its tensor
  t.out = out.tensor;
  t.lse = lse.tensor;
  const Problem p = problem_of(kMerge, t, {});
  const MergeConfig config = cuda::select_merge(p).value();
  EXPECT_EQ(config.at_once(), text.at_once);
  const cuda::MergeArguments arguments = cuda::merge_arguments(p, config, t);
  text.run(&arguments, static_cast<unsigned>(cuda::merge_blocks(p, config)));

  const float unit = output == DType::f32 ? 1e-6f : output == DType::f16 ? 0x1p-11f : 0x1p-8f;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t r = 0; r < rows; ++r) {
        const float x = static_cast<float*>(lse.tensor.data)[lse.at(b, h, r)],
                    y = static_cast<float*>(expected_lse.tensor.data)[expected_lse.at(b, h, r)];
        ASSERT_TRUE(x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) <= 1e-5f + 1e-6f * std::abs(y))
            << "lse " << b << " " << h << " " << r << ": " << x << ", not " << y;
        for (std::int64_t d = 0; d < dim; ++d) {
          const float o = load_element(out.tensor.data, output, out.at(b, h, r) + d),
                      e = load_element(expected.tensor.data, DType::f32, expected.at(b, h, r) + d);
          ASSERT_TRUE((std::isnan(o) && std::isnan(e)) || std::abs(o - e) <= 2 * unit * (1 + std::abs(e)))
              << "out " << b << " " << h << " " << r << " " << d << ": " << o << ", not " << e;
        }
        const std::size_t unit_bytes = size_of(output);
        const unsigned char* behind =
            static_cast<unsigned char*>(out.tensor.data) + (out.at(b, h, r) + dim) * unit_bytes;
        for (std::size_t i = 0; i < static_cast<std::size_t>(c.gap) * unit_bytes; ++i)
          ASSERT_EQ(behind[i], 0xff) << "a gap behind row " << r << " was written";
      }
}

class EmulatedMerge : public testing::TestWithParam<const warps::MergeSource*> {};

TEST_P(EmulatedMerge, GivesWhatTheCpuGives) {
  unsigned seed = 0;
  for (const Case c : {Case{1, 0, 0, false, false}, Case{2, 0, 0, false, false}, Case{3, 0, 8, false, true},
                       Case{5, 2, 2, false, false}, Case{9, 1, 1, false, true}, Case{33, 0, 0, false, false},
                       Case{48, 0, 0, true, true}, Case{2, 0, 0, false, false, 0}, Case{3, 2, 2, false, false, 1},
                       Case{33, 0, 8, false, false, 32}}) {
    if (c.into >= 0 && std::string_view(GetParam()->input) != GetParam()->output) continue;
    expect_as_on_the_cpu(*GetParam(), c, ++seed);
  }
}

INSTANTIATE_TEST_SUITE_P(Configs, EmulatedMerge,
                         testing::Values(&warps::merge_bf16, &warps::merge_f32, &warps::merge_f16_f32,
                                         &warps::merge_f32_bf16, &warps::merge_wide),
                         [](const auto& text) { return text.param->name(); });

TEST(EmulatedMergeOfMany, TakesAsManyAsTheParametersHold) {
  expect_as_on_the_cpu(warps::merge_f16_f32, {kLargeMerge, 0, 0, false, false}, 9);
}

TEST(MergeConfig, RefusesInASentence) {
  EXPECT_EQ(cuda::select_merge(parse_problem("merge n257 s4 d8 cuda")).refusal(),
            "supports at most 256 partial results (got 257); merge groups of them first, then their results");
  EXPECT_EQ(cuda::select_merge(parse_problem("merge n2 b70000 h32 s1000 d8 cuda")).refusal(),
            "supports at most 2147483647 rows of at most 1073741823 elements (got 2240000000 rows of 8)");
}

}  // namespace
}  // namespace onepass
