// onepass::merge: a commutative monoid up to rounding, and attention over split keys equals attention over all.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "algebra/numerics.hpp"
#include "onepass/onepass.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Partial {
  std::int64_t rows, dim;
  std::vector<float> out, lse;
  Partial(std::int64_t r, std::int64_t d) : rows(r), dim(d), out(r * d), lse(r) {}
  ConstTensor out_view() const { return {out.data(), DType::f32, {rows, dim}}; }
  Tensor out_target() { return {out.data(), DType::f32, {rows, dim}}; }
  ConstTensor lse_view() const { return {lse.data(), DType::f32, {rows}}; }
  Tensor lse_target() { return {lse.data(), DType::f32, {rows}}; }
};

Partial random_partial(std::mt19937& rng, std::int64_t rows, std::int64_t dim) {
  std::normal_distribution<float> value, score(0, 20);
  Partial p(rows, dim);
  for (float& x : p.out) x = value(rng);
  for (float& x : p.lse) x = score(rng);
  p.lse[rng() % rows] = -kInf;  // one row has seen nothing; its O is garbage that must not be read
  for (std::int64_t r = 0; r < rows; ++r) {
    if (p.lse[r] == -kInf) std::fill_n(p.out.begin() + r * dim, dim, std::nanf(""));
  }
  return p;
}

Partial joined(const std::vector<const Partial*>& parts, Executor* executor = nullptr) {
  Partial all(parts[0]->rows, parts[0]->dim);
  std::vector<ConstTensor> outs, lses;
  for (const Partial* p : parts) {
    outs.push_back(p->out_view());
    lses.push_back(p->lse_view());
  }
  onepass::merge(outs, lses, all.out_target(), all.lse_target(), {.executor = executor});
  return all;
}

bool close(const Partial& a, const Partial& b) {
  for (std::size_t i = 0; i < a.out.size(); ++i) {
    if (!(std::abs(a.out[i] - b.out[i]) <= 2e-6f * (1 + std::abs(a.out[i])))) return false;
  }
  for (std::size_t i = 0; i < a.lse.size(); ++i) {
    if (a.lse[i] != b.lse[i] && !(std::abs(a.lse[i] - b.lse[i]) <= 1e-5f + 1e-6f * std::abs(a.lse[i]))) return false;
  }
  return true;
}

RC_GTEST_PROP(Merge, IsAssociativeAndCommutativeUpToRounding, (unsigned seed)) {
  std::mt19937 rng(seed);
  const auto rows = *rc::gen::inRange<std::int64_t>(1, 20), dim = *rc::gen::inRange<std::int64_t>(1, 300);
  const Partial a = random_partial(rng, rows, dim), b = random_partial(rng, rows, dim),
                c = random_partial(rng, rows, dim);
  const Partial ab = joined({&a, &b}), bc = joined({&b, &c}), all = joined({&a, &b, &c});
  RC_ASSERT(close(joined({&ab, &c}), all));
  RC_ASSERT(close(joined({&a, &bc}), all));
  RC_ASSERT(close(joined({&c, &a, &b}), all));
}

RC_GTEST_PROP(Merge, EmptyPartialIsTheIdentity, (unsigned seed)) {
  std::mt19937 rng(seed);
  Partial a = random_partial(rng, 5, 33), nothing(5, 33);
  for (float& x : nothing.lse) x = -kInf;
  const Partial same = joined({&nothing, &a, &nothing}), empty = joined({&nothing, &nothing});
  for (int r = 0; r < 5; ++r) {
    RC_ASSERT(std::abs(same.lse[r] - a.lse[r]) <= 1e-6f * std::abs(a.lse[r]) || same.lse[r] == a.lse[r]);
    for (int d = 0; d < 33; ++d) RC_ASSERT(same.out[r * 33 + d] == (a.lse[r] == -kInf ? 0.0f : a.out[r * 33 + d]));
  }
  RC_ASSERT(empty.out == std::vector<float>(5 * 33, 0.0f));
  RC_ASSERT(empty.lse == nothing.lse);
}

TEST(Merge, NanAndInfinityStayInTheirRow) {
  std::mt19937 rng(3);
  Partial a(4, 8), b(4, 8);
  for (float& x : a.lse) x = 1;
  a.out[1 * 8 + 2] = std::nanf("");
  a.lse[2] = std::nanf("");
  a.out[3 * 8 + 5] = kInf;
  const Partial all = joined({&a, &b});
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(std::isnan(all.lse[r]), r == 2);
    for (int d = 0; d < 8; ++d) {
      EXPECT_EQ(std::isnan(all.out[r * 8 + d]), r == 2 || (r == 1 && d == 2));
      EXPECT_EQ(std::isinf(all.out[r * 8 + d]), r == 3 && d == 5);
    }
  }
}

// Scores of 3e38 have such LSEs; beside them log(2) is less than a rounding, in float64 too.
TEST(Merge, LsesOfAnySizeMakeWeightsOfASumOfOne) {
  for (const float lse : {0.0f, 3e4f, -3e4f, 1e16f, 3e38f, -3e38f}) {
    Partial a(1, 2), b(1, 2);
    a.lse[0] = b.lse[0] = lse;
    a.out = {1, -4}, b.out = {2, 8};
    const Partial all = joined({&a, &b});
    EXPECT_NEAR(all.out[0], 1.5f, 1e-6) << lse;
    EXPECT_NEAR(all.out[1], 2.0f, 1e-6) << lse;
    EXPECT_FLOAT_EQ(all.lse[0], static_cast<float>(lse + std::log(2.0))) << lse;
  }
}

// Keys cut in three uneven parts, each attended to on its own, in every dtype and in a layout with foreign strides.
TEST(Merge, SplitKeysEqualUnsplitAttention) {
  const std::int64_t b = 2, h = 4, n = 7, m = 61, d = 40, cuts[] = {0, 1, 40, m};
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  std::vector<float> q(b * h * n * d), k(b * h * m * d), v(b * h * m * d), whole(b * h * n * d), lse(b * h * n);
  for (auto* t : {&q, &k, &v})
    for (float& x : *t) x = 2 * normal(rng);
  const auto view = [&](std::vector<float>& t, std::int64_t from, std::int64_t to, std::int64_t all) {
    return Tensor(t.data() + from * d, DType::f32, {b, h, to - from, d}, {h * all * d, all * d, d, 1});
  };
  const auto attend = [&](std::int64_t from, std::int64_t to, std::vector<float>& out, const Tensor& row_lse) {
    attention({.q = view(q, 0, n, n),
               .k = view(k, from, to, m),
               .v = view(v, from, to, m),
               .out = view(out, 0, n, n),
               .lse = row_lse},
              {}, {}, "reference");
  };
  attend(0, m, whole, Tensor(lse.data(), DType::f32, {b, h, n}));

  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const float tolerance = dtype == DType::f32 ? 2e-6f : dtype == DType::f16 ? 4e-3f : 3e-2f;
    std::vector<std::vector<std::uint32_t>> stored(3, std::vector<std::uint32_t>(b * n * h * d));
    std::vector<std::vector<float>> lses(3, std::vector<float>(n * h * b));
    std::vector<ConstTensor> out_views, lse_views;
    for (int part = 0; part < 3; ++part) {
      std::vector<float> o(b * h * n * d);
      Tensor bsh(stored[part].data(), dtype, {b, h, n, d}, {n * h * d, d, h * d, 1});
      const Tensor part_lse(lses[part].data(), DType::f32, {b, h, n}, {1, b, b * h});
      attend(cuts[part], cuts[part + 1], o, part_lse);
      for (std::int64_t i = 0; i < b * h * n * d; ++i) {
        const std::int64_t x = i % d, row = i / d % n, head = i / d / n % h, batch = i / d / n / h;
        store_element(bsh.data, dtype, batch * bsh.stride[0] + head * bsh.stride[1] + row * bsh.stride[2] + x, o[i]);
      }
      out_views.push_back(bsh);
      lse_views.push_back(part_lse);
    }
    std::vector<float> merged(b * h * n * d), merged_lse(b * h * n);
    onepass::merge(out_views, lse_views, Tensor(merged.data(), DType::f32, {b, h, n, d}),
                   Tensor(merged_lse.data(), DType::f32, {b, h, n}));
    for (std::size_t i = 0; i < merged.size(); ++i)
      ASSERT_NEAR(merged[i], whole[i], tolerance) << name_of(dtype) << " " << i;
    for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(merged_lse[i], lse[i], 1e-5 + 1e-6 * std::abs(lse[i]));
  }
}

TEST(Merge, WritesEveryDtypeAndIsTheSameForAnyThreadCount) {
  std::mt19937 rng(5);
  const Partial a = random_partial(rng, 3000, 64), b = random_partial(rng, 3000, 64);
  const std::vector<ConstTensor> outs{a.out_view(), b.out_view()}, lses{a.lse_view(), b.lse_view()};
  const Partial one = joined({&a, &b}, &serial_executor());
  for (int threads : {2, 3, 7}) {
    const Partial many = joined({&a, &b}, make_executor(threads).get());
    EXPECT_EQ(std::memcmp(many.out.data(), one.out.data(), one.out.size() * 4), 0);
    EXPECT_EQ(std::memcmp(many.lse.data(), one.lse.data(), one.lse.size() * 4), 0);
  }
  for (DType dtype : {DType::f16, DType::bf16}) {
    std::vector<std::uint16_t> narrow(one.out.size()), expected(one.out.size());
    onepass::merge(outs, lses, Tensor(narrow.data(), dtype, {3000, 64}));
    for (std::size_t i = 0; i < expected.size(); ++i)
      store_element(expected.data(), dtype, static_cast<std::int64_t>(i), one.out[i]);
    EXPECT_EQ(narrow, expected);
  }
}

// Rows of the parts and of the result in turn: bytes between each other's, none shared.
TEST(Merge, InterleavedViewsAreAccepted) {
  std::vector<float> all(6 * 3 * 4, 1.0f), lse(6 * 3, 0.5f);
  const auto out_at = [&](int i) { return Tensor(all.data() + 4 * i, DType::f32, {6, 4}, {12, 1}); };
  const auto lse_at = [&](int i) { return Tensor(lse.data() + i, DType::f32, {6}, {3}); };
  const std::vector<ConstTensor> outs{out_at(0), out_at(1)}, lses{lse_at(0), lse_at(1)};
  onepass::merge(outs, lses, out_at(2), lse_at(2));
  for (int row = 0; row < 6; ++row) {
    EXPECT_EQ(all[static_cast<std::size_t>(12 * row + 8)], 1.0f);
    EXPECT_NEAR(lse[static_cast<std::size_t>(3 * row + 2)], 0.5f + std::log(2.0f), 1e-6);
  }
  EXPECT_THROW(onepass::merge(outs, lses, {all.data() + 2, DType::f32, {6, 4}, {12, 1}}, lse_at(2)), Error);
}

// As a ring adds one part after the other to what it has.
TEST(Merge, MayWriteIntoAPart) {
  std::mt19937 rng(8);
  for (const std::size_t into : {0u, 1u, 2u}) {
    const Partial a = random_partial(rng, 5, 300), b = random_partial(rng, 5, 300), c = random_partial(rng, 5, 300);
    const Partial apart = joined({&a, &b, &c});
    Partial parts[] = {a, b, c};
    std::vector<ConstTensor> outs, lses;
    for (const Partial& p : parts) outs.push_back(p.out_view()), lses.push_back(p.lse_view());
    onepass::merge(outs, lses, parts[into].out_target(), parts[into].lse_target());
    EXPECT_EQ(parts[into].out, apart.out);
    EXPECT_EQ(parts[into].lse, apart.lse);
  }
}

TEST(Merge, SizesOfZero) {
  const Partial none(0, 8);
  EXPECT_NO_THROW(joined({&none, &none}));
  Partial no_dim(3, 0);
  no_dim.lse = {1, 2, -kInf};
  EXPECT_EQ(joined({&no_dim}).lse, no_dim.lse);
}

TEST(Merge, RefusesInOneSentenceAndTouchesNothing) {
  std::vector<float> a(24, 1.0f), b(24, 2.0f), la(6), lb(6), result(24, 7.0f), result_lse(6, 7.0f);
  const Tensor ta(a.data(), DType::f32, {2, 3, 4}), tb(b.data(), DType::f32, {2, 3, 4}),
      sa(la.data(), DType::f32, {2, 3}), sb(lb.data(), DType::f32, {2, 3}), out(result.data(), DType::f32, {2, 3, 4}),
      lse(result_lse.data(), DType::f32, {2, 3});
  Tensor on_gpu = tb, strided = tb, repeated = out, null = ta;
  on_gpu.device = {DeviceKind::cuda, 1};
  strided.stride[2] = 2;
  repeated.stride[0] = 0;
  null.data = nullptr;
  const auto of_rank = [](Tensor t, int rank) {
    t.rank = rank;
    return t;
  };
  using enum ErrorCode;
  const auto refuses = [](ErrorCode code, const char* says, const std::vector<ConstTensor>& outs,
                          const std::vector<ConstTensor>& lses, const Tensor& o, const Tensor& l) {
    test::expect_refused([&] { onepass::merge(outs, lses, o, l); }, says, code);
  };
  refuses(bad_value, "outs must hold at least one partial result (got none)", {}, {}, out, lse);
  refuses(bad_shape, "lses must hold one LSE for each of the 2 outs (got 1)", {ta, tb}, {sa}, out, lse);
  refuses(bad_shape, "outs[1] must have shape [2, 3, 4], as out (got [2, 4, 3])",
          {ta, Tensor(b.data(), DType::f32, {2, 4, 3})}, {sa, sb}, out, lse);
  refuses(bad_shape, "lses[1] must have the shape of out, [2, 3, 4], without the last dimension (got [3, 2])", {ta, tb},
          {sa, Tensor(lb.data(), DType::f32, {3, 2})}, out, lse);
  refuses(bad_dtype, "lses[1] must be fp32 (got fp16)", {ta, tb}, {sa, Tensor(lb.data(), DType::f16, {2, 3})}, out,
          lse);
  refuses(bad_dtype, "outs[1] must be fp32, fp16 or bf16 (got int32)", {ta, Tensor(b.data(), DType::i32, {2, 3, 4})},
          {sa, sb}, out, lse);
  refuses(bad_device, "outs[1] must be on cpu, as out (got cuda:1)", {ta, on_gpu}, {sa, sb}, out, lse);
  refuses(bad_stride, "the last dimension of outs[1] must have stride 1 (got 2)", {ta, strided}, {sa, sb}, out, lse);
  refuses(bad_stride, "an output must not overlap itself (out has stride 0 in dimension 0", {ta, tb}, {sa, sb},
          repeated, lse);
  refuses(bad_value, "outs[0] must have data for shape [2, 3, 4] (got a null pointer)", {null, tb}, {sa, sb}, out, lse);
  refuses(bad_value, "out must not share memory with outs[1]",
          {ta, Tensor(result.data(), DType::f32, {2, 3, 4}, {4, 8, 1})}, {sa, sb}, out, lse);
  refuses(bad_value, "out must not share memory with outs[1]", {ta, Tensor(result.data(), DType::bf16, {2, 3, 4})},
          {sa, sb}, out, lse);
  refuses(bad_value, "lse must not share memory with lses[1]", {ta, tb},
          {sa, Tensor(result_lse.data(), DType::f32, {2, 3}, {1, 2})}, out, lse);
  refuses(bad_value, "lse must not share memory with out", {ta, tb}, {sa, sb}, out,
          Tensor(result.data(), DType::f32, {2, 3}));
  refuses(bad_shape, "out must be given", {ta, tb}, {sa, sb}, {}, lse);
  refuses(bad_shape, "outs[1] must have 1 to 4 dimensions (got 77)", {ta, of_rank(tb, 77)}, {sa, sb}, out, lse);
  refuses(bad_shape, "lses[0] must have 1 to 4 dimensions (got -1)", {ta, tb}, {of_rank(sa, -1), sb}, out, lse);
  refuses(bad_shape, "out must have 1 to 4 dimensions (got 5)", {ta, tb}, {sa, sb}, of_rank(out, 5), lse);
  refuses(bad_shape, "lse must have 1 to 4 dimensions (got 9)", {ta, tb}, {sa, sb}, out, of_rank(lse, 9));
  refuses(bad_dtype, "the dtype of out must be a value of DType (got 77)", {ta, tb}, {sa, sb},
          Tensor(result.data(), DType{77}, {2, 3, 4}), lse);
  refuses(bad_stride, "an output must not overlap itself (out has stride 3 in dimension 1 of [2, 3, 4])", {ta, tb},
          {sa, sb}, Tensor(result.data(), DType::f32, {2, 3, 4}, {12, 3, 1}), lse);
  refuses(bad_shape, "out must have shape [.., rows, dim] (got ", {sa}, {Tensor(la.data(), DType::f32, {2})},
          Tensor(result.data(), DType::f32, {2}), {});
  EXPECT_EQ(result, std::vector<float>(24, 7.0f));
  EXPECT_EQ(result_lse, std::vector<float>(6, 7.0f));
}

}  // namespace
}  // namespace onepass
