// onepass::softmax on the CPU: a row in pieces is the row, in any cut and order; entries that are not finite;
// gradients; what is refused.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "algebra/numerics.hpp"
#include "onepass/onepass.hpp"
#include "plan/implementations.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_numbers(std::mt19937& rng, std::size_t n, float sigma) {
  std::normal_distribution<float> value(0, sigma);
  std::vector<float> x(n);
  for (float& v : x) v = rng() % 50 == 0 ? -kInf : value(rng);
  return x;
}
ConstTensor view(const std::vector<float>& x, std::int64_t rows, std::int64_t n, std::int64_t from,
                 std::int64_t count) {
  return {x.data() + from, DType::f32, {rows, count}, {n, 1}};
}
Tensor target(std::vector<float>& x, std::int64_t rows, std::int64_t n, std::int64_t from, std::int64_t count) {
  return {x.data() + from, DType::f32, {rows, count}, {n, 1}};
}

RC_GTEST_PROP(SoftmaxPieces, AnyCutInAnyOrderIsTheRow, (unsigned seed)) {
  std::mt19937 rng(seed);
  const auto rows = static_cast<std::int64_t>(*rc::gen::inRange(1, 4));
  const auto n = static_cast<std::int64_t>(*rc::gen::inRange(1, 3000));
  const bool log = *rc::gen::arbitrary<bool>();
  const float sigma = *rc::gen::element(1.0f, 30.0f, 3000.0f);
  const std::vector<float> x = random_numbers(rng, static_cast<std::size_t>(rows * n), sigma);
  std::vector<std::int64_t> cuts{0, n};
  for (int i = *rc::gen::inRange(0, 6); i > 0; --i) cuts.push_back(static_cast<std::int64_t>(rng() % (n + 1)));
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::size_t> order(cuts.size() - 1);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), rng);

  const SoftmaxOptions options{.scale = 0.7, .log = log};
  std::vector<float> whole(x.size()), lse(rows), pieced(x.size()), joint(rows);
  softmax(view(x, rows, n, 0, n), target(whole, rows, n, 0, n), {lse.data(), DType::f32, {rows}}, options);

  std::vector<std::vector<float>> lses(order.size(), std::vector<float>(rows));
  std::vector<ConstTensor> parts;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t from = cuts[order[i]], count = cuts[order[i] + 1] - from;
    softmax(view(x, rows, n, from, count), {}, {lses[i].data(), DType::f32, {rows}}, options);
    parts.emplace_back(lses[i].data(), DType::f32, std::initializer_list<std::int64_t>{rows});
  }
  merge_lse(parts, {joint.data(), DType::f32, {rows}});
  for (const std::size_t i : order) {
    const std::int64_t from = cuts[i], count = cuts[i + 1] - from;
    softmax_piece(view(x, rows, n, from, count), {joint.data(), DType::f32, {rows}},
                  target(pieced, rows, n, from, count), options);
  }
  for (std::int64_t r = 0; r < rows; ++r)
    RC_ASSERT(lse[r] == joint[r] || std::abs(lse[r] - joint[r]) <= 1e-5f + 1e-6f * std::abs(lse[r]));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float lse_of = std::abs(lse[i / n]);  // a weight is known to 2^-24 of it
    const float allowed =
        log ? 1e-5f + 1e-6f * (lse_of + std::abs(whole[i])) : (2e-6f + 4e-7f * lse_of) * whole[i] + 1e-9f;
    RC_ASSERT(whole[i] == pieced[i] || std::abs(whole[i] - pieced[i]) <= allowed);
  }
}

// False if `row` does not take it.
bool computed(const Implementation& row, const Tensors& t, const SoftmaxOptions& options) {
  CallOptions call;
  call.scale = options.scale;
  call.log = options.log;
  const Problem p = problem_of(kSoftmax, t, call);
  if (!why_not(row, p).empty()) return false;
  const Plan plan = make_plan(p, row.name);
  std::vector<std::byte> memory(plan.workspace_bytes() + 64);
  auto* at = memory.data();
  while (reinterpret_cast<std::uintptr_t>(at) % 64) ++at;
  run(plan, t, {.workspace = {at, plan.workspace_bytes()}});
  return true;
}

TEST(Softmax, ANanReachesItsRowAndHiddenEntriesStayNothing) {
  for (const Implementation* row : plan::implementations(kSoftmax)) {
    for (const std::int64_t n : {std::int64_t{5}, std::int64_t{40000}}) {
      std::vector<float> x(static_cast<std::size_t>(4 * n), 1.0f), y(x.size()), lse(4);
      std::vector<std::uint8_t> mask(x.size(), 1);
      x[1] = std::nanf("");          // row 0
      x[n + 2] = kInf;               // row 1
      x[2 * n + 3] = std::nanf("");  // row 2: hidden
      mask[2 * n + 3] = 0;
      mask[3] = 0;
      x[n + 3] = -kInf;
      for (std::int64_t j = 0; j < n; ++j) mask[3 * n + j] = 0;  // row 3
      for (const bool log : {false, true}) {
        Tensors t;
        t.x = {x.data(), DType::f32, {4, n}};
        t.y = {y.data(), DType::f32, {4, n}};
        t.lse = {lse.data(), DType::f32, {4}};
        t.bool_mask = {mask.data(), DType::boolean, {4, n}};
        if (!computed(*row, t, {.log = log})) continue;
        const float nothing = log ? -kInf : 0.0f;
        EXPECT_EQ(y[3], nothing);
        EXPECT_EQ(y[n + 3], nothing);
        EXPECT_EQ(y[2 * n + 3], nothing);
        for (std::int64_t j = 0; j < n; ++j) {
          EXPECT_EQ(y[3 * n + j], nothing);
          if (j == 3) continue;
          EXPECT_TRUE(std::isnan(y[j]) && std::isnan(y[n + j])) << row->name << " " << j;
          const float seen = static_cast<float>(n - 1);
          EXPECT_NEAR(y[2 * n + j], log ? -std::log(seen) : 1 / seen, 1e-5) << row->name;
        }
        EXPECT_TRUE(std::isnan(lse[0]) && std::isnan(lse[1]));
        EXPECT_NEAR(lse[2], 1 + std::log(static_cast<float>(n - 1)), 1e-5);
        EXPECT_EQ(lse[3], -kInf);
      }
    }
  }
}

// By central differences of sum_j c_j y_j.
TEST(Softmax, AnInfinityBesideANegativeScaleWeighsNothing) {
  const std::vector<float> x{kInf, 1, 1, kInf, kInf, kInf, kInf, -kInf, 1};
  for (const Implementation* row : plan::implementations(kSoftmax)) {
    std::vector<float> y(x.size()), lse(3);
    Tensors t;
    t.x = {x.data(), DType::f32, {3, 3}};
    t.y = {y.data(), DType::f32, {3, 3}};
    t.lse = {lse.data(), DType::f32, {3}};
    SoftmaxOptions a;
    a.scale = -2;
    if (!computed(*row, t, a)) continue;
    EXPECT_EQ(y, (std::vector<float>{0, 0.5f, 0.5f, 0, 0, 0, 0, 0, 1})) << row->name;
    EXPECT_FLOAT_EQ(lse[0], -2 + std::log(2.0f)) << row->name;
    EXPECT_EQ(lse[1], -kInf) << row->name;
  }
}

TEST(SoftmaxBackward, IsTheForwardsDerivative) {
  constexpr std::int64_t n = 7;
  std::mt19937 rng(3);
  for (const bool log : {false, true}) {
    const SoftmaxOptions options{.scale = 1.5, .log = log};
    std::vector<float> x = random_numbers(rng, n, 1), c = random_numbers(rng, n, 1), y(n), dx(n);
    for (auto* v : {&x, &c})
      for (float& one : *v) one = std::isfinite(one) ? one : 0.25f;
    const auto loss = [&] {
      softmax({x.data(), DType::f32, {n}}, {y.data(), DType::f32, {n}}, {}, options);
      return std::inner_product(y.begin(), y.end(), c.begin(), 0.0);
    };
    loss();
    softmax_backward({y.data(), DType::f32, {n}}, {c.data(), DType::f32, {n}}, {dx.data(), DType::f32, {n}}, options);
    for (std::int64_t j = 0; j < n; ++j) {
      const float before = x[j], step = 1e-2f;
      x[j] = before + step;
      const double above = loss();
      x[j] = before - step;
      const double below = loss();
      x[j] = before;
      EXPECT_NEAR(dx[j], (above - below) / (2 * static_cast<double>(step)), 2e-3) << j << " " << log;
    }
  }
}

TEST(Softmax, BitsDoNotDependOnThreads) {
  constexpr std::int64_t rows = 3, n = 70001;
  std::mt19937 rng(4);
  const std::vector<float> x = random_numbers(rng, rows * n, 5);
  std::vector<float> one(x.size()), four(x.size());
  const auto pool = make_executor(4);
  softmax(view(x, rows, n, 0, n), target(one, rows, n, 0, n), {}, {}, {}, {.executor = &serial_executor()});
  softmax(view(x, rows, n, 0, n), target(four, rows, n, 0, n), {}, {}, {}, {.executor = pool.get()});
  EXPECT_EQ(std::memcmp(one.data(), four.data(), one.size() * sizeof(float)), 0);
}

// Logarithms of weights are never above 0, and exact to fp32 beside scores of any size.
TEST(Softmax, LogarithmsAtAnyMagnitude) {
  std::mt19937 rng(5);
  for (const Implementation* row : plan::implementations(kSoftmax)) {
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{2}, std::int64_t{37}, std::int64_t{40000}}) {
      for (const float level : {30.0f, 300.0f, 2900.0f, 1e6f}) {
        std::vector<float> x = random_numbers(rng, static_cast<std::size_t>(n), 2), y(x.size()), lse(1);
        for (float& one : x) one += level + 0.37f;
        x[0] = level;
        Tensors t;
        t.x = {x.data(), DType::f32, {1, n}};
        t.y = {y.data(), DType::f32, {1, n}};
        if (!computed(*row, t, {.scale = 0.7, .log = true})) continue;
        const double scale = static_cast<double>(0.7f),
                     most = static_cast<double>(*std::ranges::max_element(x)) * scale;
        double sum = 0;
        for (const float one : x) sum += std::exp(static_cast<double>(one) * scale - most);
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double expected = static_cast<double>(x[i]) * scale - most - std::log(sum);
          EXPECT_LE(y[i], 0.0f) << row->name;
          if (!std::isfinite(expected)) continue;
          EXPECT_NEAR(static_cast<double>(y[i]), expected, 1e-6 + 3e-7 * std::abs(expected)) << row->name << " " << n;
        }
      }
    }
  }
}

// Weights by a given LSE at the ends of fp32.
TEST(Softmax, AnLseOfTheLowestNumber) {
  for (const float level : {-std::numeric_limits<float>::max(), -2e37f, 3e38f}) {
    std::vector<float> x(5, level), y(5), lse{level};
    softmax_piece({x.data(), DType::f32, {1, 5}}, {lse.data(), DType::f32, {1}}, {y.data(), DType::f32, {1, 5}});
    for (const float one : y) EXPECT_EQ(one, 1.0f) << level;
  }
}

TEST(Softmax, RefusesInASentence) {
  std::vector<float> x(12), y(12, 7.0f), lse(3);
  std::vector<std::uint8_t> mask(12, 1);
  const ConstTensor in{x.data(), DType::f32, {3, 4}};
  const Tensor out{y.data(), DType::f32, {3, 4}};
  EXPECT_EQ(test::sentence_of([&] { softmax(in, {}); }), "y or lse must be given");
  EXPECT_EQ(test::sentence_of([&] { softmax({}, out); }), "x must be given");
  EXPECT_EQ(test::sentence_of([&] { softmax(in, {y.data(), DType::f32, {4, 3}}); }),
            "y must have shape [3, 4], as x (got [4, 3])");
  EXPECT_EQ(test::sentence_of([&] { softmax(in, {y.data(), DType::bf16, {3, 4}}); }),
            "y must be fp32, as x (got bf16)");
  EXPECT_EQ(test::sentence_of([&] { softmax(in, out, {lse.data(), DType::f32, {4}}); }),
            "lse must have the shape of x, [3, 4], without the last dimension (got [4])");
  EXPECT_EQ(test::sentence_of([&] { softmax(in, out, {}, {}, {mask.data(), DType::boolean, {2, 4}}); }),
            "bool_mask must have sizes of 1 or of x, [3, 4] (got [2, 4])");
  EXPECT_EQ(test::sentence_of([&] { softmax(in, out, {}, {.scale = kInf}); }),
            "scale must be -2.3e38 to 2.3e38 (got inf)");
  EXPECT_EQ(test::sentence_of([&] { softmax(in, {x.data(), DType::f32, {3, 4}}); }), "y must not share memory with x");
  EXPECT_EQ(test::sentence_of([&] { softmax_backward(in, {}, out); }), "dy must be given");
  EXPECT_EQ(y, std::vector<float>(12, 7.0f));
  Tensors t;
  t.x = in, t.y = out;
  EXPECT_EQ(test::sentence_of([&] { (void)problem_of(t, {}); }), "q must be given");
  EXPECT_NE(test::sentence_of([&] {
              (void)parse_problem("softmax s3x4 fp32 causal_top_left");
            }).find("softmax does not support 'causal_top_left'"),
            std::string::npos);
}

TEST(SoftmaxProblem, IsItsLine) {
  for (const char* line :
       {"softmax b2 h3 s4x5 bf16 out=fp32 scale=2 log mask=b1qk lse", "softmax b1 h1 s4 fp32 row_lse",
        "softmax b1 h2 s4x9 fp16 lse_only x_strides=0,40,9,1", "softmax_bwd b1 h1 s3x4 bf16 log cuda:0"}) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(to_string(p), line);
    EXPECT_EQ(parse_problem(to_string(p)), p);
  }
}

}  // namespace
}  // namespace onepass
