// cpu::combine: partial states over any cut of the keys give the oracle's rows.
#include "cpu/common/combine.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "algebra/numerics.hpp"
#include "reference/textbook.hpp"

namespace onepass::cpu {
namespace {

struct Case {
  std::int64_t heads = 3, total_q = 7, total_k = 90, dim = 24;
  std::vector<float> q, k, v, sinks, out, lse;
  bool with_sinks = true;
  std::vector<std::int32_t> cu_q{0, 4, 4, 7}, cu_k{0, 50, 57, 90};  // the second entry has keys but no queries

  explicit Case(std::mt19937& rng)
      : q(heads * total_q * dim),
        k(heads * total_k * dim),
        v(k.size()),
        sinks(heads),
        out(q.size()),
        lse(heads * total_q) {
    std::normal_distribution<float> normal;
    for (auto* t : {&q, &k, &v, &sinks})
      for (float& x : *t) x = 2 * normal(rng);
  }
  AttentionTensors tensors() {
    return {.q = {q.data(), DType::f32, {total_q, heads, dim}},
            .k = {k.data(), DType::f32, {total_k, heads, dim}},
            .v = {v.data(), DType::f32, {total_k, heads, dim}},
            .out = {out.data(), DType::f32, {total_q, heads, dim}},
            .lse = {lse.data(), DType::f32, {heads, total_q}},
            .sinks = with_sinks ? ConstTensor(sinks.data(), DType::f32, {heads}) : ConstTensor(),
            .cu_seqlens_q = {cu_q.data(), DType::i32, {4}},
            .cu_seqlens_k = {cu_k.data(), DType::i32, {4}}};
  }
};

// The state that a kernel leaves for one row and the keys [lo, hi): plain scalar code.
void leave_partial(const Problem& p, const Tensors& a, const Sequence& s, std::int64_t h, std::int64_t i,
                   std::int64_t lo, std::int64_t hi, RowState<float>& state, float* out) {
  const auto at = [](const ConstTensor& t, std::int64_t token, std::int64_t head) {
    return static_cast<const float*>(t.data) + row_offset(t, 0, head, token);
  };
  std::vector<float> scores;
  float top = Arith<float>::neg_inf();
  for (std::int64_t j = lo; j < hi; ++j) {
    double dot = 0;
    for (std::int64_t d = 0; d < p.dim_qk; ++d)
      dot += double{at(a.q, s.q_begin + i, h)[d]} * at(a.k, s.k_begin + j, h)[d];
    scores.push_back(static_cast<float>(dot * p.effective_scale()));
    top = std::max(top, scores.back());
  }
  state = {};
  std::fill_n(out, p.dim_v, 0.0f);
  constexpr float kFactor = static_cast<float>(kLog2e);
  const Step<float> step = advance(state, top, kFactor);
  for (std::int64_t j = lo; j < hi; ++j) {
    const float w = weight(scores[j - lo], kFactor, step);
    absorb(state, w);
    for (std::int64_t d = 0; d < p.dim_v; ++d) out[d] += w * at(a.v, s.k_begin + j, h)[d];
  }
}

struct Result {
  std::vector<float> out, lse;
};
Result combined(Case& c, std::int64_t splits, std::int64_t chunk, Executor& executor = serial_executor()) {
  const Tensors a = c.tensors();
  const Problem p = problem_of(a, {});
  Workspace counting;
  book_partials(counting, p, splits);
  std::vector<float> memory(counting.bytes() / 4 + 16, std::numeric_limits<float>::quiet_NaN());
  Workspace workspace(reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64));
  const Partials partials = book_partials(workspace, p, splits);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, a, b);
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      for (std::int64_t i = 0; i < s.seq_q; ++i) {
        for (std::int64_t x = 0; x < splits; ++x) {
          const std::int64_t row = partial_row(p, s, h, i), lo = std::min(s.seq_k, x * chunk),
                             hi = x + 1 == splits ? s.seq_k : std::min(s.seq_k, lo + chunk);
          leave_partial(p, a, s, h, i, lo, hi, partials.state_of(row, x), partials.out_of(row, x));
        }
      }
    }
  }
  std::fill(c.out.begin(), c.out.end(), std::nanf(""));
  std::fill(c.lse.begin(), c.lse.end(), std::nanf(""));
  combine(p, a, partials, {}, executor);
  return {c.out, c.lse};
}

void expect_oracle(Case& c, const Result& got) {
  const Tensors a = c.tensors();
  const reference::Dense right = reference::oracle(problem_of(a, {}), a);
  for (std::size_t i = 0; i < got.out.size(); ++i)
    ASSERT_NEAR(got.out[i], right.out[i], 3e-6 * (1 + std::abs(right.out[i]))) << i;
  for (std::size_t i = 0; i < got.lse.size(); ++i) {
    if (std::isinf(right.lse[i]))
      ASSERT_EQ(got.lse[i], right.lse[i]);
    else
      ASSERT_NEAR(got.lse[i], right.lse[i], 1e-5 + 1e-6 * std::abs(right.lse[i])) << i;
  }
}

RC_GTEST_PROP(Combine, AnyCutOfTheKeysGivesTheOraclesRows, (unsigned seed)) {
  std::mt19937 rng(seed);
  Case c(rng);
  if (*rc::gen::arbitrary<bool>()) c.with_sinks = false;
  const auto chunk = *rc::gen::inRange<std::int64_t>(1, 60), splits = *rc::gen::inRange<std::int64_t>(1, 12);
  expect_oracle(c, combined(c, splits, chunk));
}

TEST(Combine, IsTheSameForAnyThreadCount) {
  std::mt19937 rng(2);
  Case c(rng);
  const Result one = combined(c, 5, 11);
  for (int threads : {2, 5}) {
    const Result many = combined(c, 5, 11, *make_executor(threads));
    EXPECT_EQ(many.out, one.out);
    EXPECT_EQ(many.lse, one.lse);
  }
}

// A split whose share of the row underflows still carries what it saw: an infinity stays where the oracle has it, and
// its neighbours are untouched.
TEST(Combine, InfinityOfAFarSplitStays) {
  std::mt19937 rng(4);
  Case c(rng);
  c.with_sinks = false;
  for (std::int64_t d = 0; d < c.dim; ++d) {
    for (std::int64_t j = 0; j < 50; ++j)
      c.k[j * c.heads * c.dim + d] = j < 11 ? 0.0f : 60.0f;  // head 0 of the first entry
    for (std::int64_t i = 0; i < 4; ++i) c.q[i * c.heads * c.dim + d] = 1.0f;
  }
  const Result finite = combined(c, 5, 11);
  c.v[3] = std::numeric_limits<float>::infinity();  // key 0, head 0, dim 3: 2^-424 of every row
  const Result got = combined(c, 5, 11);
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    const std::int64_t d = i % c.dim, head = i / c.dim % c.heads, token = i / c.dim / c.heads;
    if (d == 3 && head == 0 && token < 4)
      EXPECT_EQ(got.out[i], std::numeric_limits<float>::infinity());
    else
      EXPECT_EQ(got.out[i], finite.out[i]) << i;
  }
}

TEST(Combine, WritesNarrowOutputsAndRowsWithoutKeys) {
  std::mt19937 rng(6);
  Case c(rng);
  c.cu_k = {0, 50, 57, 57};  // the third entry's queries see nothing but their sink
  const Result wide = combined(c, 2, 30);
  expect_oracle(c, wide);
  for (DType dtype : {DType::f16, DType::bf16}) {
    std::vector<std::uint16_t> narrow(wide.out.size());
    Tensors a = c.tensors();
    const Problem p = [&] {
      Problem narrow_out = problem_of(a, {});
      narrow_out.out_dtype = dtype;
      return narrow_out;
    }();
    a.out = Tensor(narrow.data(), dtype, {c.total_q, c.heads, c.dim});
    const Sequence s = sequence_of(p, a, 0);
    RowState<float> state{3, 2};
    finalize_row(p, a, s, 1, 2, &state, wide.out.data(), 1, {});
    const Merged<float> joined = join_natural_sink(state, c.sinks[1]);
    const float share = joined.alpha_a / joined.state.l;
    for (std::int64_t d = 0; d < c.dim; ++d) {
      const float wrote = load_element(narrow.data(), dtype, row_offset(a.out, 0, 1, 2) + d);
      EXPECT_NEAR(wrote, wide.out[d] * share,
                  std::abs(wide.out[d] * share) * (dtype == DType::f16 ? 6e-4 : 4e-3) + 1e-7);
    }
  }
}

}  // namespace
}  // namespace onepass::cpu
