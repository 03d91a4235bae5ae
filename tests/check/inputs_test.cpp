// Inputs are what they promise: layout, scores, poison, guards.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "algebra/numerics.hpp"
#include "check/check.hpp"
#include "reference/reference.hpp"
#include "support/pokes.hpp"

namespace onepass::check {
namespace {

// Scores of one head, row by row.
std::vector<std::vector<double>> scores(const Inputs& in) {
  const Problem& p = in.problem;
  const ConstTensor &q = in.tensors.q, &k = in.tensors.k;
  std::vector<std::vector<double>> s(p.seq_q, std::vector<double>(p.seq_k));
  for (std::int64_t i = 0; i < p.seq_q; ++i) {
    for (std::int64_t j = 0; j < p.seq_k; ++j) {
      for (std::int64_t d = 0; d < p.dim_qk; ++d) {
        s[i][j] += static_cast<double>(load_element(q.data, q.dtype, row_offset(q, 0, 0, i) + d)) *
                   static_cast<double>(load_element(k.data, k.dtype, row_offset(k, 0, 0, j) + d)) * p.effective_scale();
      }
    }
  }
  return s;
}
double deviation(const std::vector<std::vector<double>>& s) {
  double sum = 0, squares = 0, n = 0;
  for (const auto& row : s)
    for (double x : row) sum += x, squares += x * x, n += 1;
  return std::sqrt(squares / n - sum * sum / n / n);
}

TEST(Inputs, ScoresSpreadAsPromised) {
  for (const char* line : {"b1 h1 s64x256 d64", "b1 h1 s64x256 d128 bf16", "b1 h1 s64x256 d8 fp16 scale=0.01",
                           "b1 h1 s64x256 d32 scale=-2"}) {
    const Problem p = parse_problem(line);
    const double normal = deviation(scores(make_inputs(p)));
    EXPECT_GT(normal, 3) << line;
    EXPECT_LT(normal, 6) << line;
    const auto huge = scores(make_inputs(p, 0, Distribution::huge));
    double top = 0, least = 0;  // least: of every fifth row
    for (std::size_t i = 0; i < huge.size(); ++i) {
      for (double x : huge[i]) {
        top = std::max(top, std::abs(x));
        if (i % 5 == 0) least = std::max(least, std::abs(x));
      }
    }
    EXPECT_GT(top, p.dtype == DType::f16 ? 1e5 : 1e30) << line;
    EXPECT_LT(top, p.dtype == DType::f16 ? 1e8 : 1e33) << line;
    EXPECT_GT(least, 5e4) << line;
    EXPECT_LT(least, 1e6) << line;
  }
}

TEST(Inputs, MaximumRisesInEveryTile) {
  const auto s = scores(make_inputs(parse_problem("b1 h1 s16x512 d64"), 0, Distribution::rising));
  int risen = 0, tiles = 0;
  for (const auto& row : s) {
    for (std::size_t t = 64; t < row.size(); t += 64, ++tiles) {
      const auto at = row.begin() + static_cast<std::ptrdiff_t>(t);
      risen += *std::max_element(at, at + 64) > *std::max_element(row.begin(), at);
    }
  }
  EXPECT_GT(risen, tiles * 97 / 100);
}

TEST(Inputs, OneHotRowsMeetOneVisibleKey) {
  const Inputs in = make_inputs(parse_problem("b1 h1 s128x64 d64 causal_bottom_right"), 0, Distribution::one_hot);
  const auto s = scores(in);
  const BandMask band = band_mask(in.problem, in.problem.seq_q, in.problem.seq_k);
  for (std::int64_t i = 64; i < 128; ++i) {
    const auto top = std::max_element(s[i].begin(), s[i].end());
    EXPECT_NEAR(*top, 30, 0.1);
    EXPECT_TRUE(band.visible(i, top - s[i].begin()));
    EXPECT_EQ(std::count_if(s[i].begin(), s[i].end(), [](double x) { return x > 25; }), 1);
  }
}

TEST(Inputs, MasksHaveEmptyRowsAndEmptyAndFullTiles) {
  const Inputs in = make_inputs(parse_problem("b2 h2 s128x256 d8 mask=bhqk"), 7);
  const ConstTensor& m = in.tensors.bool_mask;
  const auto at = [&](std::int64_t i, std::int64_t j) {
    return static_cast<const std::uint8_t*>(m.data)[i * m.stride[2] + j];
  };
  int empty_rows = 0, empty_tiles = 0, full_tiles = 0;
  for (std::int64_t i = 0; i < 128; ++i) {
    std::int64_t seen = 0;
    for (std::int64_t j = 0; j < 256; ++j) seen += at(i, j);
    empty_rows += seen == 0;
    for (std::int64_t t = 0; t < 256; t += 64) {
      std::int64_t tile = 0;
      for (std::int64_t j = t; j < t + 64; ++j) tile += at(i, j);
      empty_tiles += seen > 0 && tile == 0;
      full_tiles += tile == 64;
    }
  }
  EXPECT_GT(empty_rows, 3);
  EXPECT_GT(empty_tiles, 31);
  EXPECT_GT(full_tiles, 31);
}

TEST(Inputs, GapsTailsAndOutputsAreNaN) {
  const Inputs in = make_inputs(parse_problem("h2/1 d5 varlen=3,0,2 packed=9:8 layout=bshd lse"));
  const ConstTensor& k = in.tensors.k;
  for (std::int64_t token = 0; token < 8; ++token) {
    EXPECT_EQ(std::isnan(load_element(k.data, k.dtype, row_offset(k, 0, 0, token))), token >= 5) << token;
  }
  EXPECT_TRUE(in.buffer(Role::out).all_poison());
  EXPECT_TRUE(in.buffer(Role::lse).all_poison());
}

TEST(Inputs, AreRepeatableAndDependOnTheSeed) {
  const Problem p = parse_problem("b2 h2 s9 d16 bf16");
  const auto bytes = [&](std::uint64_t seed) {
    const Inputs in = make_inputs(p, seed);
    return std::vector<std::byte>(in.buffer(Role::q).data(), in.buffer(Role::q).data() + in.buffer(Role::q).bytes());
  };
  EXPECT_EQ(bytes(5), bytes(5));
  EXPECT_NE(bytes(5), bytes(6));
}

TEST(Inputs, ProblemSurvivesTheRoundTripThroughTensors) {
  for (const char* line :
       {"b2 h6/2 s3x5 d7/9 bf16 out=fp32 causal_top_left window=2:0 scale=0.5 softcap=3 bias=fp16:b11k mask=1hq1 alibi "
        "sinks dropout=0.25 seed=9 lse layout=bshd",
        "h4/2 d16 fp16 varlen=3,0,7/4,2,0 packed=12:8 alibi lse", "b0 h2 s3 d4", "b2 h0/1 s3 d4", "b1 h1 s0x4 d1 lse",
        "b1 h1 s4x0 d1 mask=11qk", "b3 h4/2 s5x6 d8 strides=q:160,40,8;k:0,8,0;v:0,0,0;o:400,96,16"}) {
    const Problem p = parse_problem(line);
    for (Placement placement : {Placement::middle, Placement::page_end, Placement::page_start}) {
      EXPECT_EQ(to_string(make_inputs(p, 2, Distribution::normal, placement).problem), to_string(p));
      const Problem padded = make_inputs(p, 1, Distribution::normal, placement).problem;  // strides of side tensors
      EXPECT_EQ(parse_problem(to_string(padded)), padded) << to_string(padded);
    }
  }
}

TEST(Inputs, PageEndFaultsBeyondTheEndAndOnWrites) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const Inputs in = make_inputs(parse_problem("b1 h1 s3 d5"), 0, Distribution::normal, Placement::page_end);
  auto* k = Inputs::writable<volatile float>(in.tensors.k);
  EXPECT_FALSE(std::isnan(k[14]));
  EXPECT_DEATH((void)k[15], "");
  EXPECT_DEATH(k[0] = 1, "");
  const Inputs front = make_inputs(parse_problem("b1 h1 s3 d5"), 0, Distribution::normal, Placement::page_start);
  EXPECT_DEATH((void)Inputs::writable<volatile float>(front.tensors.k)[-1], "");
}

TEST(Inputs, RefuseWhatTheyCannotMake) {
  EXPECT_THROW(make_inputs(parse_problem("b2 h1 d8 packed=4:4")), Error);
  EXPECT_THROW(make_inputs(parse_problem("b2 h1 s4 d8 cuda")), Error);
  for (const char* line : {"b1099511627776 h1 s0 d8", "append h1099511627776 s0 d8", "merge n2 b1099511627776 s0 d8",
                           "flat_gemm m1099511627776 n0 k8 bf16", "linear m0 n1099511627776 k0"})
    EXPECT_THROW(make_inputs(parse_problem(line)), Error) << line;  // the oracle would visit each head or row
}

TEST(SetWhere, WritesTheElementsOfATensorAndNoOthers) {
  constexpr std::int64_t kHeads = 2, kTokens = 3, kDim = 64;
  for (const bool packed : {false, true}) {
    std::vector<float> memory(kDim * kHeads * kDim);  // more than the tensor has
    const ConstTensor t = packed ? ConstTensor(memory.data(), DType::f32, {kTokens, kHeads, kDim})
                                 : ConstTensor(memory.data(), DType::f32, {1, kHeads, kTokens, kDim});
    test::set_where(t, test::everywhere, true);
    for (std::int64_t i = 0; i < std::ssize(memory); ++i)
      ASSERT_EQ(std::isnan(memory[i]), i < t.elements()) << "element " << i << (packed ? ", packed" : "");
  }
}

}  // namespace
}  // namespace onepass::check
