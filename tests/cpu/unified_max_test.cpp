// A unified maximum in decoding changes no result: rows that it does not serve, at either end of its range, are
// computed again, and said to be.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "check/check.hpp"
#include "check/draw/random.hpp"
#include "cpu/decode/decode.hpp"
#include "onepass/unified_max.hpp"
#include "support/sentence.hpp"

namespace onepass::cpu {
namespace {

std::vector<const Implementation*> here() {
  std::vector<const Implementation*> rows;
  for (const Implementation& row : decode_implementations())
    if (why_not(row, parse_problem("fwd b1 h1 s1 d8 fp32")).empty()) rows.push_back(&row);
  return rows;
}

// The rows that `line` says were computed again, by every implementation of this machine, each judged.
std::vector<std::int32_t> recomputed(const std::string& line, check::Distribution distribution) {
  std::vector<std::int32_t> all;
  for (const Implementation* row : here()) {
    check::Inputs inputs = check::make_inputs(parse_problem(line), 0, distribution);
    const check::Verdict v = check::check(*row, inputs);
    EXPECT_TRUE(v.accepted && v.right) << row->name << ", " << line << ": " << v.sentence;
    const Tensor& t = inputs.tensors.recomputed;
    std::vector<std::int32_t> these;
    for (std::int64_t b = 0; b < t.shape[0]; ++b)
      for (std::int64_t h = 0; h < t.shape[1]; ++h)
        for (std::int64_t i = 0; i < t.shape[2]; ++i)
          these.push_back(
              static_cast<const std::int32_t*>(t.data)[b * t.stride[0] + h * t.stride[1] + i * t.stride[2]]);
    EXPECT_TRUE(all.empty() || these == all) << row->name << ", " << line;
    all = std::move(these);
  }
  return all;
}
std::int64_t count(const std::vector<std::int32_t>& flags) {
  for (const std::int32_t f : flags) EXPECT_TRUE(f == 0 || f == 1) << f;
  return std::ranges::count(flags, 1);
}

// Normal scores lie within a few of 0. Without the check a phi of -200 overflows (e^200) and one of 200 underflows to
// 0 / 0: every row leaves at either end, none in the middle.
TEST(UnifiedMax, RowsLeaveAtBothEnds) {
  for (const char* shape : {"b1 h4/2 s1x70 d64", "b2 h8/1 s2x300 d40 layout=bshd", "b1 h2 s1x9000 d128",
                            "b3 h6/2 s1x500 d33/7", "b2 h14/2 s1x33 d64 seqused=0,33 kv=paged:7"}) {
    for (const char* dtype : {"fp32", "bf16", "fp16"}) {
      const auto with = [&](int phi) {
        return text("fwd ", shape, " ", dtype, " lse unified_max=", phi, " recomputed");
      };
      const std::vector<std::int32_t> none = recomputed(with(0), check::Distribution::normal);
      EXPECT_EQ(count(none), 0) << shape;
      for (const int phi : {-200, 200}) {
        const std::vector<std::int32_t> all = recomputed(with(phi), check::Distribution::normal);
        const bool empty = std::string(shape).find("seqused=0") != std::string::npos;  // rows that see nothing stay
        EXPECT_EQ(count(all), static_cast<std::int64_t>(all.size()) / (empty ? 2 : 1)) << with(phi);
      }
    }
  }
}

// A row is computed again exactly if its largest score is out of range: rows of one call differ by a bias of their own.
TEST(UnifiedMax, EachRowByItself) {
  const std::string line = "fwd b1 h16/2 s2x200 d64 fp32 bias=fp32:1hq1 lse unified_max=0 recomputed";
  for (const Implementation* row : here()) {
    check::Inputs inputs = check::make_inputs(parse_problem(line));
    const ConstTensor& bias = inputs.tensors.bias;
    auto* const b = check::Inputs::writable<float>(bias);
    const auto at = [&](std::int64_t h, std::int64_t i) { return h * bias.stride[1] + i * bias.stride[2]; };
    for (std::int64_t h = 0; h < 16; ++h)
      for (std::int64_t i = 0; i < 2; ++i) b[at(h, i)] = 20.0f * static_cast<float>(2 * h + i - 16);  // -320 .. 300
    inputs.changed();
    const check::Verdict v = check::check(*row, inputs);
    EXPECT_TRUE(v.accepted && v.right) << row->name << ": " << v.sentence;
    const Tensor& t = inputs.tensors.recomputed;
    for (std::int64_t h = 0; h < 16; ++h)
      for (std::int64_t i = 0; i < 2; ++i) {
        const float shift = b[at(h, i)];
        if (std::abs(std::abs(shift) - kUnifiedRange) < 15) continue;  // the products decide
        EXPECT_EQ(static_cast<const std::int32_t*>(t.data)[h * t.stride[1] + i * t.stride[2]],
                  std::abs(shift) > kUnifiedRange ? 1 : 0)
            << row->name << " " << h << " " << i << " " << shift;
      }
  }
}

TEST(UnifiedMax, FeaturesAndExtremes) {
  for (const char* features : {"sinks", "softcap=20 alibi", "mask=b1qk", "dropout=0.2 seed=5",
                               "window=30:0 causal_bottom_right", "batch_invariant"})
    for (const check::Distribution d : check::kDistributions)
      (void)recomputed(text("fwd b2 h8/2 s2x700 d64 bf16 unified_max=3.5 recomputed ", features), d);
}

// The same with NaN in a key: it reaches the rows that see it and no other, whatever they are referred to.
TEST(UnifiedMax, ANaNReachesTheRowsThatSeeIt) {
  for (const Implementation* row : here()) {
    check::Inputs inputs = check::make_inputs(
        parse_problem("fwd b1 h4/2 s3x100 d64 fp32 causal_bottom_right lse unified_max=0 recomputed"));
    check::Inputs::writable<float>(inputs.tensors.v)[inputs.tensors.v.stride[2] * 98 + 5] = NAN;
    check::Inputs::writable<float>(inputs.tensors.k)[inputs.tensors.k.stride[1] + inputs.tensors.k.stride[2] * 99] =
        NAN;
    inputs.changed();
    const check::Verdict v = check::check(*row, inputs);
    EXPECT_TRUE(v.accepted && v.right) << row->name << ": " << v.sentence;
  }
}

// Weights of e^-36 take a V of 1e-25 below the least number of fp32, which would leave a 0.
TEST(UnifiedMax, SmallValuesAreNotLost) {
  constexpr std::int64_t kKeys = 300, kDim = 40;
  check::Random random(3, {});
  std::vector<float> q(kDim), k(kKeys * kDim), v(k.size()), out(kDim), expected(kDim);
  for (std::vector<float>* x : {&q, &k}) std::ranges::generate(*x, [&] { return random.normal(); });
  std::ranges::generate(v, [&] { return 1e-25f * random.normal(); });
  std::int32_t left = 7;
  AttentionTensors t{.q = {q.data(), DType::f32, {1, 1, 1, kDim}},
                     .k = {k.data(), DType::f32, {1, 1, kKeys, kDim}},
                     .v = {v.data(), DType::f32, {1, 1, kKeys, kDim}},
                     .out = {expected.data(), DType::f32, {1, 1, 1, kDim}}};
  for (const Implementation* row : here()) {
    t.out.data = expected.data(), t.recomputed = {};
    attention(t, {}, {}, row->name);
    t.out.data = out.data(), t.recomputed = {&left, DType::i32, {1, 1, 1}};
    attention(t, {.unified_max = 36.0f}, {}, row->name);
    for (std::int64_t d = 0; d < kDim; ++d) ASSERT_NEAR(1e25f * out[d], 1e25f * expected[d], 1e-5) << row->name;
    EXPECT_EQ(left, 1) << row->name;
  }
}

TEST(UnifiedMax, WrongFlagsAreNoticed) {
  for (const int phi : {-200, 0}) {
    check::Inputs inputs = check::make_inputs(
        parse_problem(text("fwd b2 h2 s1x33 d64 fp32 seqused=33,0 unified_max=", phi, " recomputed")));
    ASSERT_TRUE(check::run_on(*here().front(), inputs, serial_executor()));
    const auto verdict = [&] { return check::judge(inputs, serial_executor()); };
    ASSERT_TRUE(verdict().right) << verdict().sentence;
    auto* const flags = static_cast<std::int32_t*>(inputs.tensors.recomputed.data);
    flags[0] = phi == 0 ? 2 : 0;
    EXPECT_NE(verdict().sentence.find("recomputed[0, 0, 0] is "), std::string::npos) << verdict().sentence;
    flags[0] = phi == 0 ? 0 : 1;
    flags[inputs.tensors.recomputed.stride[0]] = 1;
    EXPECT_EQ(verdict().sentence, "recomputed[1, 0, 0] is 1 but the row sees no key");
  }
}

TEST(UnifiedMax, OthersRefuseIt) {
  const Problem p = parse_problem("fwd b1 h4/2 s64x64 d64 fp32 unified_max=1");
  test::expect_refused([&] { (void)make_plan(p); }, "does not support unified_max");
  EXPECT_EQ(to_string(parse_problem("s1x9 unified_max=-2.5 recomputed")),
            to_string(parse_problem(to_string(parse_problem("s1x9 unified_max=-2.5 recomputed")))));
  EXPECT_THROW((void)parse_problem("s1x9 recomputed"), Error);
  EXPECT_THROW((void)parse_problem("bwd s1x9 unified_max=1"), Error);
}

TEST(UnifiedMax, TheMiddleOfWhatWasObserved) {
  ScoreRange range;
  EXPECT_EQ(range.unified_max(), 0.0f);
  const float lse[6] = {3, -INFINITY, 7, NAN, 11, 5};
  range.observe({lse, DType::f32, {2, 3}});
  EXPECT_EQ(range.low, 3.0f);
  EXPECT_EQ(range.high, 11.0f);
  EXPECT_EQ(range.unified_max(), 7.0f);
  EXPECT_TRUE(range.serves_all());
  const float more[1] = {100};
  range.observe({more, DType::f32, {1}});
  EXPECT_FALSE(range.serves_all());
}

}  // namespace
}  // namespace onepass::cpu
