// A cascade is attention to the keys of all its levels, in groups of rows that share them.
#include "onepass/cascade.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "onepass/onepass.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

constexpr std::int64_t kHeads = 4, kHeadsKv = 2, kDim = 40, kDimV = 24;

std::vector<float> normals(std::mt19937& engine, std::int64_t count) {
  std::vector<float> x(static_cast<std::size_t>(count));
  std::normal_distribution<float> normal;
  for (float& y : x) y = normal(engine);
  return x;
}
ConstTensor i32(const std::vector<std::int32_t>& x, std::int64_t rows = 0) {
  const auto n = static_cast<std::int64_t>(x.size());
  return rows == 0 ? ConstTensor(x.data(), DType::i32, {n}) : ConstTensor(x.data(), DType::i32, {rows, n / rows});
}

// A prompt that all rows share, a part that groups of sequences share, and pages of each sequence, of which the last
// has a tree of drafts.
struct Levels {
  std::mt19937 engine{7};
  std::int64_t rows = 9;
  std::vector<float> q = normals(engine, rows* kHeads* kDim), prompt_k = normals(engine, 50 * kHeadsKv * kDim),
                     prompt_v = normals(engine, 50 * kHeadsKv * kDimV),
                     shared_k = normals(engine, 33 * kHeadsKv * kDim),
                     shared_v = normals(engine, 33 * kHeadsKv * kDimV),
                     own_k = normals(engine, 8 * 16 * kHeadsKv * kDim),
                     own_v = normals(engine, 8 * 16 * kHeadsKv * kDimV), sinks = normals(engine, kHeads);
  // Rows 0 to 4 share keys 0 to 20, rows 5 and 6 the others; rows 7 and 8 are of no group.
  std::vector<std::int32_t> groups{0, 5, 7}, shared{0, 21, 33};
  // Sequences of 1, 4 and 4 rows.
  std::vector<std::int32_t> sequences{0, 1, 5, 9}, used{17, 4, 30}, table{3, 0, 5, 1, 2, 7};
  std::vector<std::int32_t> tree{-1, 0, 1, 2, -1, 0, 1, 2, -1, -1, 0, 1};

  ConstTensor q_tensor() const { return {q.data(), DType::f32, {rows, kHeads, kDim}}; }
  ConstTensor sink_tensor() const { return {sinks.data(), DType::f32, {kHeads}}; }
  std::vector<CascadeLevel> levels() const {
    std::vector<CascadeLevel> all(3);
    all[0].tensors.k = {prompt_k.data(), DType::f32, {50, kHeadsKv, kDim}};
    all[0].tensors.v = {prompt_v.data(), DType::f32, {50, kHeadsKv, kDimV}};
    all[1].tensors.k = {shared_k.data(), DType::f32, {33, kHeadsKv, kDim}};
    all[1].tensors.v = {shared_v.data(), DType::f32, {33, kHeadsKv, kDimV}};
    all[1].tensors.cu_seqlens_q = i32(groups), all[1].tensors.cu_seqlens_k = i32(shared);
    all[2].tensors.k = {own_k.data(), DType::f32, {8, 16, kHeadsKv, kDim}};
    all[2].tensors.v = {own_v.data(), DType::f32, {8, 16, kHeadsKv, kDimV}};
    all[2].tensors.cu_seqlens_q = i32(sequences), all[2].tensors.seqused_k = i32(used);
    all[2].tensors.page_table = i32(table, 3), all[2].tensors.tree = i32(tree, 3);
    all[2].attention.band.causal = true;
    return all;
  }

  // Where the k and v of a row's keys are, in float64: tokens of [.., heads_kv, dim].
  struct Key {
    const float *k, *v;
  };
  std::vector<Key> keys_of(std::int64_t row) const {
    std::vector<Key> keys;
    const auto add = [&](const std::vector<float>& k, const std::vector<float>& v, std::int64_t token) {
      keys.push_back({k.data() + token * kHeadsKv * kDim, v.data() + token * kHeadsKv * kDimV});
    };
    for (std::int64_t j = 0; j < 50; ++j) add(prompt_k, prompt_v, j);
    for (std::int64_t j = row < 5 ? 0 : 21; row < 7 && j < (row < 5 ? 21 : 33); ++j) add(shared_k, shared_v, j);
    const std::size_t s = row < 1 ? 0 : row < 5 ? 1 : 2;
    const std::int64_t token = used[s] - (sequences[s + 1] - row), drafts = used[s] - 4;
    for (std::int64_t j = 0; j <= token; ++j) {
      bool seen = j < drafts;
      for (std::int64_t i = token - drafts; i >= 0; i = tree[s * 4 + static_cast<std::size_t>(i)])
        seen = seen || j == drafts + i;
      if (seen) add(own_k, own_v, table[s * 2 + static_cast<std::size_t>(j / 16)] * 16 + j % 16);
    }
    return keys;
  }
  // O of a head of a row, its LSE, and its largest score.
  std::vector<double> expected(std::int64_t row, std::int64_t head) const {
    const std::vector<Key> keys = keys_of(row);
    const std::int64_t h = head / (kHeads / kHeadsKv);
    std::vector<double> result(kDimV + 2);
    double most = -std::numeric_limits<double>::infinity();
    double sum = std::exp(double{sinks[static_cast<std::size_t>(head)]});
    for (const Key& key : keys) {
      double s = 0;
      for (std::int64_t d = 0; d < kDim; ++d)
        s += double{q[static_cast<std::size_t>((row * kHeads + head) * kDim + d)]} * key.k[h * kDim + d];
      s /= std::sqrt(double{kDim});
      const double w = std::exp(s);
      sum += w, most = std::max(most, s);
      for (std::int64_t d = 0; d < kDimV; ++d) result[static_cast<std::size_t>(d)] += w * key.v[h * kDimV + d];
    }
    for (double& x : result) x /= sum;
    result[kDimV] = std::log(sum), result[kDimV + 1] = most;
    return result;
  }
};

TEST(Cascade, IsAttentionToTheKeysOfAllLevels) {
  const Levels l;
  std::vector<float> out(static_cast<std::size_t>(l.rows * kHeads * kDimV)), lse(l.rows * kHeads), again(out.size());
  cascade(l.q_tensor(), l.levels(), {out.data(), DType::f32, {l.rows, kHeads, kDimV}},
          {lse.data(), DType::f32, {kHeads, l.rows}}, l.sink_tensor());
  for (std::int64_t row = 0; row < l.rows; ++row) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const std::vector<double> expected = l.expected(row, head);
      for (std::int64_t d = 0; d < kDimV; ++d)
        EXPECT_NEAR(out[static_cast<std::size_t>((row * kHeads + head) * kDimV + d)],
                    expected[static_cast<std::size_t>(d)], 2e-6)
            << row << " " << head;
      EXPECT_NEAR(lse[static_cast<std::size_t>(head * l.rows + row)], expected[kDimV], 2e-6);
    }
  }
  // In memory of the caller's, whatever it holds.
  const Tensor into(again.data(), DType::f32, {l.rows, kHeads, kDimV});
  WorkspaceMemory memory;
  const std::span<std::byte> workspace =
      memory.take(cascade_workspace_bytes(l.q_tensor(), l.levels(), into, {}, l.sink_tensor()));
  std::fill(workspace.begin(), workspace.end(), std::byte{0xff});  // NaN
  cascade(l.q_tensor(), l.levels(), into, {}, l.sink_tensor(), {.workspace = workspace});
  EXPECT_EQ(again, out);
  EXPECT_THROW(cascade(l.q_tensor(), l.levels(), into, {}, l.sink_tensor(),
                       {.workspace = workspace.first(workspace.size() - 1)}),
               Error);
}

// Rows with their maxima, as columns between others.
struct WithMaxima {
  std::vector<float> out, plain, row_max;
  std::int64_t rows;

  explicit WithMaxima(const Levels& l)
      : out(static_cast<std::size_t>(l.rows * kHeads * kDimV)),
        plain(out.size()),
        row_max(static_cast<std::size_t>(l.rows * kHeads * 2), 777.0f),
        rows(l.rows) {}
  Tensor out_tensor() { return {out.data(), DType::f32, {rows, kHeads, kDimV}}; }
  Tensor plain_tensor() { return {plain.data(), DType::f32, {rows, kHeads, kDimV}}; }
  Tensor maxima() { return {row_max.data(), DType::f32, {kHeads, rows}, {1, 2 * kHeads}}; }  // [rows, 2, heads]
  float at(std::int64_t row, std::int64_t head) const {
    return row_max[static_cast<std::size_t>(row * 2 * kHeads + head)];
  }
};

TEST(Cascade, RowMaximaAreThoseOfAllLevels) {
  const Levels l;
  WithMaxima r(l);
  WorkspaceMemory memory;
  const std::size_t bytes =
      cascade_workspace_bytes(l.q_tensor(), l.levels(), r.out_tensor(), {}, l.sink_tensor(), nullptr, r.maxima());
  const std::span<std::byte> workspace = memory.take(bytes);
  std::fill(workspace.begin(), workspace.end(), std::byte{0xff});  // NaN
  cascade(l.q_tensor(), l.levels(), r.out_tensor(), {}, l.sink_tensor(), {.workspace = workspace}, r.maxima());
  cascade(l.q_tensor(), l.levels(), r.plain_tensor(), {}, l.sink_tensor());
  EXPECT_EQ(r.out, r.plain);
  for (std::int64_t row = 0; row < l.rows; ++row) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      EXPECT_NEAR(r.at(row, head), l.expected(row, head)[kDimV + 1], 2e-6) << row << " " << head;
      EXPECT_EQ(r.row_max[static_cast<std::size_t>((row * 2 + 1) * kHeads + head)], 777.0f);
    }
  }
}

// A prompt in pieces, each a level: a piece has no key for some rows, or none at all.
TEST(Cascade, RowMaximaHaveTheBitsOfOneCall) {
  Levels l;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto piece = [&](std::int64_t first, std::int64_t count) {
    CascadeLevel level;
    level.tensors.k = {l.prompt_k.data() + first * kHeadsKv * kDim, DType::f32, {count, kHeadsKv, kDim}};
    level.tensors.v = {l.prompt_v.data() + first * kHeadsKv * kDimV, DType::f32, {count, kHeadsKv, kDimV}};
    level.implementation = "cpu.flash.baseline";
    return level;
  };
  const auto same_bits = [&](const std::vector<CascadeLevel>& levels, const CascadeLevel& whole) {
    WithMaxima parts(l), one(l);
    cascade(l.q_tensor(), levels, parts.out_tensor(), {}, {}, {}, parts.maxima());
    cascade(l.q_tensor(), std::vector{whole}, one.out_tensor(), {}, {}, {}, one.maxima());
    for (std::size_t i = 0; i < one.row_max.size(); ++i) {
      const float a = parts.row_max[i], b = one.row_max[i];
      EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << i << ": " << a << " in place of " << b;
    }
    return one;
  };
  const std::vector<CascadeLevel> pieces{piece(0, 17), piece(17, 0), piece(17, 1), piece(18, 32)};
  same_bits(pieces, piece(0, 50));
  // Rows of no group have no key at all.
  std::vector<CascadeLevel> some{piece(0, 30), piece(30, 20)};
  CascadeLevel of_some = piece(0, 50);
  const std::vector<std::int32_t> groups{0, 4}, first{0, 30}, second{0, 20}, all{0, 50};
  for (const auto& [level, keys] : {std::pair{&some[0], &first}, {&some[1], &second}, {&of_some, &all}})
    level->tensors.cu_seqlens_q = i32(groups), level->tensors.cu_seqlens_k = i32(*keys);
  EXPECT_EQ(same_bits(some, of_some).at(8, 0), -inf);
  // NaN comes from any level, and +infinity.
  for (const std::int64_t key : {3, 17, 40}) {
    const Levels clean;
    l.prompt_k[static_cast<std::size_t>(key * kHeadsKv * kDim)] = nan;
    EXPECT_TRUE(std::isnan(same_bits(pieces, piece(0, 50)).at(2, 0))) << key;
    for (std::int64_t d = 0; d < kDim; ++d)
      l.prompt_k[static_cast<std::size_t>(key * kHeadsKv * kDim + d)] =
          l.q[static_cast<std::size_t>(d)] > 0 ? inf : -inf;
    const float most = same_bits(pieces, piece(0, 50)).at(0, 0);  // NaN may stand for an infinity
    EXPECT_TRUE(std::isnan(most) || most == inf) << key << ": " << most;
    l.prompt_k = clean.prompt_k;
  }
}

TEST(Cascade, RefusesRowMaximaThatDoNotFit) {
  const Levels l;
  WithMaxima r(l);
  std::fill(r.out.begin(), r.out.end(), 777.0f);
  const auto refusal = [&](const Tensor& row_max, const Launch& launch = {}) {
    return test::sentence_of([&] { cascade(l.q_tensor(), l.levels(), r.out_tensor(), {}, {}, launch, row_max); });
  };
  EXPECT_EQ(refusal({r.row_max.data(), DType::f32, {l.rows, kHeads}}), "row_max must have shape [4, 9] (got [9, 4])");
  EXPECT_EQ(refusal({r.row_max.data(), DType::bf16, {kHeads, l.rows}}), "row_max must be fp32 (got bf16)");
  EXPECT_EQ(refusal({r.out.data() + 8, DType::f32, {kHeads, l.rows}}), "row_max must not share memory with out");
  const Tensor wanted = r.maxima();
  WorkspaceMemory memory;
  const std::span<std::byte> workspace =
      memory.take(cascade_workspace_bytes(l.q_tensor(), l.levels(), r.out_tensor(), {}, {}, nullptr, wanted));
  EXPECT_EQ(refusal({workspace.data(), DType::f32, {kHeads, l.rows}}, {.workspace = workspace}),
            "row_max must not share memory with the workspace");
  EXPECT_EQ(r.out, std::vector<float>(r.out.size(), 777.0f));
  std::vector<CascadeLevel> levels = l.levels();
  levels[1].tensors.row_max = wanted;
  EXPECT_THROW(cascade(l.q_tensor(), levels, r.out_tensor()), Error);
}

TEST(Cascade, RefusesInASentenceWithOutUntouched) {
  const Levels l;
  std::vector<float> out(static_cast<std::size_t>(l.rows * kHeads * kDimV), 777.0f);
  const Tensor into(out.data(), DType::f32, {l.rows, kHeads, kDimV});
  const auto refusal = [&](auto change) {
    std::vector<CascadeLevel> levels = l.levels();
    ConstTensor q = l.q_tensor();
    Tensor o = into;
    change(levels, q, o);
    return test::sentence_of([&] { cascade(q, levels, o); });
  };
  using All = std::vector<CascadeLevel>&;
  const auto has = [&](const std::string& sentence, const char* part) {
    EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
  };
  has(refusal([](All levels, auto&, auto&) { levels.clear(); }), "levels must hold at least one level (got none)");
  has(refusal([](All, auto& q, auto&) { q.rank = 2; }), "q must have shape [total, heads_q, dim]");
  has(refusal([&](All levels, auto& q, auto&) { levels[1].tensors.q = q; }),
      "levels[1] must not have q; the cascade has it");
  has(refusal([&](All levels, auto&, auto&) { levels[2].tensors.sinks = l.sink_tensor(); }),
      "levels[2] must not have sinks");
  has(refusal([](All levels, auto&, auto&) { levels[0].tensors.v = {}; }), "levels[0] must have v");
  has(refusal([](All levels, auto&, auto&) { levels[1].tensors.cu_seqlens_q = {}; }),
      "levels[1] must have cu_seqlens_q, since it has cu_seqlens_k");
  has(refusal([](All, auto&, auto& o) { o.shape[2] = kDimV - 1; }), "out");
  has(refusal([](All levels, auto&, auto&) { levels[2].implementation = "none"; }), "implementation must be one of");
  EXPECT_EQ(out, std::vector<float>(out.size(), 777.0f));
}

}  // namespace
}  // namespace onepass
