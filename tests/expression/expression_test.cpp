// The expression language against C++ itself: every text here is compiled too, and must give the same values.
#include "expression/expression.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "expression/scalar.hpp"
#include "expression/tokens.hpp"
#include "onepass/error.hpp"
#include "problem/problem.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

constexpr int kKeys = 70, kLanes = 12;
const float kTable[] = {0.5f, -1.25f, 3.0f, 7.5f, -0.0f};
const std::int32_t kIds[2][3] = {{4, -5, 6}, {7, 8, -9}};
const bool kFlags[] = {true, false, true};

std::vector<NamedTensor> tensors() {
  return {{"table", ConstTensor(kTable, DType::f32, {5})},
          {"ids", ConstTensor(kIds, DType::i32, {2, 3})},
          {"flags", ConstTensor(kFlags, DType::boolean, {3})}};
}
std::vector<ModBuffer> specs() {
  std::vector<ModBuffer> out;
  for (const auto& [name, t] : tensors()) out.push_back({name, t.dtype, t.rank, t.shape});
  return out;
}

int clamped(int i, int n) { return std::clamp(i, 0, n - 1); }
struct Table {
  float operator[](int i) const { return kTable[clamped(i, 5)]; }
};
struct Ids {
  int operator()(int i, int j) const { return kIds[clamped(i, 2)][clamped(j, 3)]; }
};
struct Flags {
  bool operator[](int i) const { return kFlags[clamped(i, 3)]; }
};

// The value of the same text in C++, by the names that the language has.
using std::abs;
using std::ceil;
using std::cos;
using std::exp;
using std::exp2;
using std::fabs;
using std::floor;
using std::log;
using std::log2;
using std::max;
using std::min;
using std::sin;
using std::sqrt;
using std::tanh;

// Precedence is what is tested.
#pragma GCC diagnostic ignored "-Wparentheses"

struct Case {
  const char* text;
  float (*compiled)(float score, int batch, int head, int q_index, int k_index);
};
constexpr Table table;
constexpr Ids ids;
constexpr Flags flags;
#define SAME_AS_CPP(...)                                                                                           \
  Case {                                                                                                           \
    #__VA_ARGS__,                                                                                                  \
        []([[maybe_unused]] float score, [[maybe_unused]] int batch, [[maybe_unused]] int head,                    \
           [[maybe_unused]] int q_index, [[maybe_unused]] int k_index) { return static_cast<float>(__VA_ARGS__); } \
  }

const Case kCases[] = {
    SAME_AS_CPP(score),
    SAME_AS_CPP(7),
    SAME_AS_CPP(q_index),
    SAME_AS_CPP(k_index),
    SAME_AS_CPP(head + batch),
    SAME_AS_CPP(score + 1),
    SAME_AS_CPP(score - 0.1f * abs(q_index - k_index)),
    SAME_AS_CPP(score - 0.5f * fabsf(float(q_index) - k_index)),
    SAME_AS_CPP(score * 2.0f / 3.0f),
    SAME_AS_CPP(-score + -2),
    SAME_AS_CPP(- -score),
    SAME_AS_CPP(+score),
    SAME_AS_CPP(q_index / 4),
    SAME_AS_CPP(-q_index / 4),
    SAME_AS_CPP((q_index - 9) % 4),
    SAME_AS_CPP(q_index / 4.0f),
    SAME_AS_CPP(q_index - k_index - 1),
    SAME_AS_CPP(q_index - (k_index - 1)),
    SAME_AS_CPP(1 + 2 * 3 - 4 / 2 % 3),
    SAME_AS_CPP(q_index << 2 | k_index >> 1 & 3 ^ head),
    SAME_AS_CPP(~q_index & 0xff),
    SAME_AS_CPP(q_index < k_index),
    SAME_AS_CPP(q_index <= k_index),
    SAME_AS_CPP(q_index > k_index),
    SAME_AS_CPP(q_index >= k_index),
    SAME_AS_CPP(q_index == k_index),
    SAME_AS_CPP(q_index != k_index),
    SAME_AS_CPP((score < 0.25f) + (score >= 0.25f) * 2),
    SAME_AS_CPP(score != score),
    SAME_AS_CPP(!(q_index < k_index)),
    SAME_AS_CPP(!q_index),
    SAME_AS_CPP(q_index&& k_index),
    SAME_AS_CPP(q_index < 3 || k_index < 3 && head == 1),
    SAME_AS_CPP(q_index < k_index ? score : -score),
    SAME_AS_CPP(q_index < 2   ? 1
                : q_index < 4 ? 2.5f
                              : 3),
    SAME_AS_CPP(head ? q_index : k_index),
    SAME_AS_CPP(true ? score : 0),
    SAME_AS_CPP(int(score * 10.0f)),
    SAME_AS_CPP((int)score + (float)head / 2),
    SAME_AS_CPP((float(q_index) - 1) * (int(score) + 2)),
    SAME_AS_CPP(bool(head) + bool(score)),
    SAME_AS_CPP(min(q_index, 5) + max(k_index, 7)),
    SAME_AS_CPP(min(score, 0.5f) - max(score, float(head))),
    SAME_AS_CPP(fminf(score, 0.5f) - fmaxf(score, 1.0f)),
    SAME_AS_CPP(tanh(score)),
    SAME_AS_CPP(30.0f * tanhf(score / 30.0f)),
    SAME_AS_CPP(exp(score) + expf(-score)),
    SAME_AS_CPP(exp2(score)),
    SAME_AS_CPP(sin(score) * cosf(float(q_index)) + sinf(0.5f) - cos(score)),
    SAME_AS_CPP(log(float(q_index + 1)) + log2(float(k_index + 1))),
    SAME_AS_CPP(sqrt(float(q_index)) + floor(score) + ceil(score)),
    SAME_AS_CPP(table[q_index]),
    SAME_AS_CPP(table[q_index - k_index + 2]),
    SAME_AS_CPP(score + table[head]),
    SAME_AS_CPP(ids(head, k_index) + ids(0, q_index)),
    SAME_AS_CPP(flags[k_index] && q_index > 3),
    SAME_AS_CPP(table[ids(head, 0)] * score),
    SAME_AS_CPP(1e-3f * score + .5f + 2.f + 1.5e+2f),
    SAME_AS_CPP(q_index * 65536 / 3),
};

std::vector<float> scores_for(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> s(kKeys * kLanes);
  std::generate(s.begin(), s.end(), [&] { return normal(random); });
  return s;
}

template <class F>
std::vector<F> run(ModKind kind, const std::string& source, std::vector<F> scores, int width = kLanes) {
  const Expression e = read_expression(kind, source, specs());
  std::vector<F> numbers(e.steps.size() * kExprBlock);
  std::vector<std::int32_t> integers(numbers.size()), head(kLanes), row(kLanes);
  for (int i = 0; i < kLanes; ++i) head[i] = i % 2, row[i] = i / 2 + 1;
  const std::vector<NamedTensor> buffers = tensors();
  const ExprRun<F, ScalarFunctions> run(e, buffers, {numbers.data(), integers.data()});
  for (int lane = 0; lane < kLanes; lane += width) {  // narrower tiles of the same scores
    const ExprTile<F> tile{scores.data() + lane, kLanes, width, kKeys, 1, 3, head.data() + lane, row.data() + lane};
    kind == ModKind::score ? run.change(tile) : run.hide(tile, F(-99));
  }
  return scores;
}

TEST(Expression, GivesWhatCppGives) {
  for (const Case& c : kCases) {
    const std::vector<float> before = scores_for(1);
    for (const int width : {1, 4, kLanes}) {
      const std::vector<float> after = run<float>(ModKind::score, c.text, before, width);
      for (int k = 0; k < kKeys; ++k) {
        for (int i = 0; i < kLanes; ++i) {
          const float expected = c.compiled(before[k * kLanes + i], 1, i % 2, i / 2 + 1, k + 3);
          const float got = after[k * kLanes + i];
          ASSERT_NEAR(got, expected, 1e-6f * (1 + std::abs(expected))) << c.text << ", width " << width;
        }
      }
    }
  }
}

TEST(Expression, InDoubleComputesInDouble) {
  const std::vector<double> out = run<double>(ModKind::score, "score / 3.0f", std::vector<double>(kKeys * kLanes, 1.0));
  for (const double x : out) ASSERT_EQ(x, 1.0 / 3.0);
}

TEST(Expression, AMaskHidesWhereItIsFalse) {
  const std::vector<float> before = scores_for(2),
                           after = run<float>(ModKind::mask, "ids(0, head) > 0 && k_index % 3", before);
  for (int k = 0; k < kKeys; ++k)
    for (int i = 0; i < kLanes; ++i)
      ASSERT_EQ(after[k * kLanes + i], i % 2 == 0 && (k + 3) % 3 != 0 ? before[k * kLanes + i] : -99.0f);
}

TEST(Expression, AMaskIsABool) {
  for (const char* text : {"(q_index < 3) | (k_index < 2)", "(q_index < 3) ^ (k_index < 2)", "flags[0]", "true",
                           "bool(k_index % 3)", "q_index < 3 and !flags[1] or head == 1"})
    EXPECT_NO_THROW(read_expression(ModKind::mask, text, specs())) << text;
  for (const char* text : {"k_index % 3", "~(q_index < 3)", "(q_index ^ k_index) & 3", "0.5f", "ids(0, 0)"})
    test::expect_refused([&] { read_expression(ModKind::mask, text, specs()); }, "a mask_mod must be a bool");
}

TEST(Expression, BracketsHoldSeveralIndicesAndOneElementNeedsNone) {
  const auto value = [](const std::string& source) {
    return run<double>(ModKind::score, source, std::vector<double>(kKeys * kLanes, 1))[0];
  };
  EXPECT_EQ(value("ids[0, 1]"), value("ids(0, 1)"));
  EXPECT_EQ(value("table[ids[0, 0] + 1]"), value("table(ids(0, 0) + 1)"));
  const std::vector<ModBuffer> one{{"alpha", DType::f32, 1, {1, 1, 1, 1}}};
  EXPECT_EQ(read_expression(ModKind::score, "score * alpha", one).steps.size(),
            read_expression(ModKind::score, "score * alpha[0]", one).steps.size());
}

TEST(Expression, TheEdgesOfIntegersAreDefined) {
  const auto value = [](const std::string& source) {
    return run<double>(ModKind::score, source, std::vector<double>(kKeys * kLanes, 3e9))[0];
  };
  EXPECT_EQ(value("1 / (q_index - q_index)"), 0);
  EXPECT_EQ(value("1 % (q_index - q_index)"), 0);
  EXPECT_EQ(value("(-2147483647 - head - 1 + head) / (head - head - 1)"), -2147483648.0);
  EXPECT_EQ(value("2147483647 + q_index"), -2147483648.0);
  EXPECT_EQ(value("int(score)"), 2147483647.0);
  EXPECT_EQ(value("int(-score)"), -2147483648.0);
  EXPECT_EQ(value("int(score * 0.0f / 0.0f)"), 0);
  EXPECT_EQ(value("table[0 - 1000000000]"), 0.5);
  EXPECT_EQ(value("ids(1000, 1000)"), -9);
}

struct Wrong {
  const char* text;
  const char* column;  // and what else the sentence says
};
const Wrong kWrong[] = {
    {"score + foo", "column 9: 'foo': the known names are score, batch, head, q_index, k_index, table, ids, flags"},
    {"score +", "column 8: the text ends where a value is expected"},
    {"", "column 1: the text ends"},
    {"score score", "column 7: 'score': an operator or the end is expected"},
    {"(score", "column 7: the text ends where ')' is expected"},
    {"score % 2", "column 7: '%' requires integers"},
    {"score & 1", "column 7: '&' requires integers"},
    {"~score", "'~' requires an integer"},
    {"min(score)", "min requires 2 arguments (got 1)"},
    {"tanh(score, 1)", "tanh requires 1 argument (got 2)"},
    {"table[score]", "an index of table must be an integer (got a float)"},
    {"ids[1]", "buffer ids of rank 2 requires 2 arguments (got 1)"},
    {"score + table", "'(' is expected"},
    {"score + q_idx", "column 9: 'q_idx': FlexAttention's q_idx is q_index here"},
    {"torch.tanh(score)", "column 1: 'torch': torch.tanh is tanh here"},
    {"-torch.where(head, 1, 2)", "column 2: 'torch': torch.where(c, a, b) is written (c ? a : b) here"},
    {"ids(1)", "buffer ids of rank 2 requires 2 arguments (got 1)"},
    {"head ? 1", "':' is expected"},
    {"012", "octal"},
    {"1f", "a number such as"},
    {"2147483648", "32 bits"},
    {"1e99f", "range of a float"},
    {"1.2.3", "a number such as"},
    {"0x", "a number"},
    {"score = 1", "column 7: '='"},
    {"score\n  + 1 +\n  @", "line 3, column 3: '@'"},
};

TEST(Expression, AWrongTextIsShownWithItsColumnAndALineBelowIt) {
  for (const Wrong& w : kWrong) {
    const auto [code, what] = test::said_by([&] { read_expression(ModKind::score, w.text, specs()); });
    EXPECT_EQ(code, ErrorCode::bad_text) << w.text;
    EXPECT_NE(what.find(w.column), std::string::npos) << what;
    EXPECT_TRUE(what.starts_with("score_mod, ") && what.ends_with('^')) << what;
  }
  test::expect_refused([] { read_expression(ModKind::mask, "q_index >= k_index &&\n  score > 0", specs()); },
                       "mask_mod, line 2, column 3: 'score': a mask_mod does not support score");
  const std::string what =
      test::sentence_of([] { read_expression(ModKind::mask, "q_index >= k_index &&\n  score > 0", specs()); });
  EXPECT_TRUE(what.ends_with("\n    score > 0\n    ^")) << what;
}

TEST(Expression, DeepAndLongTextsAreRefused) {
  for (const char* unit : {"(", "-", "!", "1?", "abs("}) {
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += unit;
    EXPECT_THROW(read_expression(ModKind::score, deep + "1", {}), Error);
  }
  std::string sum = "1";
  for (int i = 0; i < 100; ++i) sum += " + head";
  EXPECT_TRUE(read_expression(ModKind::score, sum, {}).given());
  for (int i = 0; i < 40; ++i) sum += " + head";
  EXPECT_THROW(read_expression(ModKind::score, sum, {}), Error);
}

// CUDA's compiler has no limit of its own.
TEST(Expression, LongTextsAreRefusedOnEveryDevice) {
  const auto said = [](const std::string& score_mod, const char* device) -> std::string {
    const auto [code, sentence] =
        test::said_by([&] { parse_problem("fwd s4 d8 " + std::string(device) + " score_mod={" + score_mod + "}"); });
    EXPECT_TRUE(sentence.empty() || code == ErrorCode::bad_text) << sentence;
    return sentence;
  };
  const auto nested = [](std::size_t n) { return std::string(n, '(') + "score" + std::string(n, ')'); };
  for (const char* device : {"cpu", "cuda"}) {
    EXPECT_EQ(said("score" + std::string(kMaxModText - 5, ' '), device), "");
    EXPECT_EQ(said("score" + std::string(kMaxModText - 4, ' '), device),
              "score_mod must have at most 16384 characters (got 16385)");
    EXPECT_EQ(said(nested(20), device), "");
    EXPECT_EQ(said(nested(65), device).find("score_mod, column 65: brackets must be nested at most 64 deep"), 0u);
  }
  EXPECT_EQ(said(nested(64), "cuda"), "");
}

// The last step of a text that is a part of itself is a copy.
TEST(Expression, WhatIsRepeatedIsComputedOnce) {
  const auto steps = [](const char* source) { return read_expression(ModKind::score, source, {}).steps.size(); };
  EXPECT_EQ(steps("score * q_index"), 4u);  // score, q_index, a cast, a product
  EXPECT_EQ(steps("(score * q_index) / (score * q_index)"), 5u);
  EXPECT_EQ(steps("(score * q_index) / (score * k_index)"), 8u);
  std::string text = "score";
  for (int i = 0; i < 7; ++i) text = "(tanh(" + text + ") * " + text + ")";
  EXPECT_EQ(read_expression(ModKind::score, text, {}).steps.size(), 15u);  // of 255
}

TEST(Expression, WhatCouldEscapeItsPlaceIsRefused) {
  for (const char* text :
       {"score)", "(score", "score; } void f() {", "[score", "{score]", "#define x", "score // x", "/* */ score",
        "\"x\"", "'x'", "sco\\\nre", "%:define", "<% score %>", "sc\xc3\xb6re", "\x01"})
    EXPECT_THROW(check_mod_text("score_mod", text), Error) << text;
  for (const char* text : {"score", "[&](float x) { return x; }(score)", "a[b(c)]\n + d", ""})
    EXPECT_NO_THROW(check_mod_text("score_mod", text)) << text;
  for (const char* name : {"", "1x", "_x", "a b", "a-b", "score", "for", "tanh", "INFINITY", "DEV"})
    EXPECT_THROW(check_mod_name(name), Error) << name;
  for (const char* name : {"table", "x1", "doc_of", "scores", "format"}) EXPECT_NO_THROW(check_mod_name(name)) << name;
}

}  // namespace
}  // namespace onepass
