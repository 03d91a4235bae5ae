// Calls of 2^40 sequences without rows return at once.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <unistd.h>

#include "onepass/onepass.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

constexpr std::int64_t kMany = std::int64_t{1} << 40, kDim = 16;

// A loop over the sequences takes hours. The alarm ends the process instead.
class NoWork : public testing::Test {
 protected:
  void SetUp() override { alarm(60); }
  void TearDown() override { alarm(0); }

  ConstTensor many(std::int64_t heads, std::int64_t seq) const {
    return {zeros_.data(), DType::f32, {kMany, heads, seq, kDim}, {0, 0, 0, 1}};
  }
  ConstTensor same(const std::int32_t& x) const { return {&x, DType::i32, {kMany}, {0}}; }
  Tensor none(std::int64_t heads) { return {written_.data(), DType::f32, {kMany, heads, 0, kDim}}; }

  const std::vector<float> zeros_ = std::vector<float>(kDim);
  std::vector<float> written_ = std::vector<float>(kDim, std::numeric_limits<float>::quiet_NaN());
};

TEST_F(NoWork, Forward) {
  const std::int32_t used = 3;
  Tensors t;
  t.q = many(2, 0), t.k = t.v = many(2, 5), t.out = none(2);
  attention(t);
  attention(t, {}, {}, "reference");
  attention_fp8(t, {}, {.center = true});
  t.seqused_k = same(used);
  attention(t);
}

TEST_F(NoWork, GradientsAreZero) {
  const auto bias_of = [](auto* data, std::int64_t rows, std::int64_t keys) {
    return BasicTensor(data, DType::f32, {1, 1, rows, keys});
  };
  for (const char* implementation : {"", "reference"}) {
    for (const auto& [rows, keys, sinks] : {std::tuple{0, 5, true}, {0, 0, true}, {4, 0, false}}) {
      const std::int64_t bias_keys = keys == 0 ? 1 : keys;
      std::vector<float> bias(8), slopes(2), sink(2), dbias(8, 7.0f), dslopes(2, 7.0f), dsink(2, 7.0f);
      Tensors t;
      t.q = t.dout = many(2, rows), t.k = t.v = many(1, keys);
      t.out = {const_cast<float*>(zeros_.data()), DType::f32, {kMany, 2, rows, kDim}, {0, 0, 0, 1}};
      t.lse = {const_cast<float*>(zeros_.data()), DType::f32, {kMany, 2, rows}, {0, 0, 0}};
      t.bias = bias_of(static_cast<const void*>(bias.data()), 1, bias_keys);
      t.dbias = bias_of(static_cast<void*>(dbias.data()), 1, bias_keys);
      t.alibi_slopes = {slopes.data(), DType::f32, {2}};
      t.dalibi_slopes = {dslopes.data(), DType::f32, {2}};
      if (sinks) t.sinks = {sink.data(), DType::f32, {2}}, t.dsinks = {dsink.data(), DType::f32, {2}};
      attention_backward(t, {}, {}, implementation);
      EXPECT_EQ(dslopes, std::vector<float>(2));
      EXPECT_EQ(dsink, std::vector<float>(2, sinks ? 0.0f : 7.0f));
      for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(dbias[i], i < bias_keys ? 0.0f : 7.0f) << i;
    }
  }
}

// In one plan, whose workspace does not grow with the batch.
TEST_F(NoWork, PlansNeedLittleMemory) {
  std::vector<float> sink(2), dsink(2, 7.0f);
  Tensors t;
  t.q = t.dout = t.k = t.v = many(2, 0), t.out = none(2);
  t.lse = {written_.data(), DType::f32, {kMany, 2, 0}};
  t.sinks = {sink.data(), DType::f32, {2}}, t.dsinks = {dsink.data(), DType::f32, {2}};
  const Plan plan = make_plan(problem_of(t, {}));
  std::vector<std::byte> memory(plan.workspace_bytes() + 64);
  const std::size_t skipped = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  run(plan, t, {.workspace = std::span(memory).subspan(skipped, plan.workspace_bytes())});
  EXPECT_EQ(dsink, std::vector<float>(2));
}

TEST_F(NoWork, QuantizeWritesFactorsAndMeans) {
  std::vector<float> factor(1), mean(3 * kDim, 7.0f);
  const Tensor one(factor.data(), DType::f32, {1, 1, 1});
  quantize(many(2, 0), {written_.data(), DType::f8e4m3, {kMany, 2, 0, kDim}}, one);
  EXPECT_EQ(factor[0], 0x1p-108f);
  factor[0] = 0;
  quantize({zeros_.data(), DType::f32, {3, 1, 0, kDim}}, {written_.data(), DType::f8e4m3, {3, 1, 0, kDim}}, one,
           {mean.data(), DType::f32, {3, 1, kDim}});
  EXPECT_EQ(factor[0], 0x1p-108f);
  EXPECT_EQ(mean, std::vector<float>(3 * kDim));
  factor[0] = 0;
  quantize({nullptr, DType::f32, {0, 3, 5, kDim}}, {nullptr, DType::f8e4m3, {0, 3, 5, kDim}}, one);
  EXPECT_EQ(factor[0], 0x1p-108f);
}

TEST_F(NoWork, Append) {
  const std::int32_t used = 0, page = 1;
  std::vector<float> pages(2 * 4 * kDim, 7.0f);
  AppendTensors t;
  t.k_new = t.v_new = many(1, 0), t.cache_seqlens = same(used);
  t.k = t.v = none(1);
  append_kv(t);
  const Tensor cache(pages.data(), DType::f32, {2, 4, 1, kDim});
  t.k = cache, t.v = {pages.data(), DType::f32, {2, 4, 1, 0}};
  t.v_new = {zeros_.data(), DType::f32, {kMany, 1, 0, 0}};
  t.page_table = {&page, DType::i32, {kMany, 2}, {0, 0}};
  append_kv(t);
  EXPECT_EQ(pages, std::vector<float>(pages.size(), 7.0f));
}

TEST_F(NoWork, PrefixSumsAreNotBroadcast) {
  const std::int32_t zero = 0;
  Tensors t;
  t.q = t.k = t.v = {zeros_.data(), DType::f32, {0, 2, kDim}};
  t.out = {written_.data(), DType::f32, {0, 2, kDim}};
  t.cu_seqlens_q = t.cu_seqlens_k = same(zero);
  EXPECT_EQ(test::sentence_of([&] { attention(t); }),
            "cu_seqlens_q must have a stride other than 0 (got 1099511627776 entries with stride 0)");
}

}  // namespace
}  // namespace onepass
