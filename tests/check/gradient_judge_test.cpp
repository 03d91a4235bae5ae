// The rule for gradients refuses wrong ones: what a backward pass gets wrong in practice.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/check.hpp"
#include "reference/reference.hpp"

namespace onepass::check {
namespace {

constexpr const char* kLines[] = {
    "bwd b2 h4/2 s70x90 d32/16 fp32 causal_bottom_right dlse",
    "bwd b1 h2 s80x60 d64 bf16 causal_bottom_right softcap=8",
    ("bwd b2 h2/1 s65 d40 fp16 grad=fp32 dropout=0.2 seed=3 bias=fp32:1hqk sinks alibi "  // one line, in two texts
     "grads=dq,dk,dv,dbias,dsinks,dalibi_slopes"),
    "bwd h2 d16 fp32 varlen=5,0,40/9,3,50 packed=50:70",
};

// A right result from another source (the reference), then spoilt.
Verdict after(const char* line, const std::function<void(Inputs&)>& spoil) {
  Inputs in = make_inputs(parse_problem(line), 1);
  EXPECT_TRUE(run_on(reference::reference_implementations()[1], in, default_executor()));
  spoil(in);
  return judge(in, default_executor());
}
// f of every number of a gradient.
void change(const Tensor& t, const std::function<float(float)>& f) {
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    std::int64_t at = 0, rest = i;
    for (int d = t.rank - 1; d >= 0; rest /= t.shape[d--]) at += rest % t.shape[d] * t.stride[d];
    store_element(t.data, t.dtype, at, f(load_element(t.data, t.dtype, at)));
  }
}

TEST(GradientJudge, AcceptsTheReference) {
  for (const char* line : kLines) {
    const Verdict v = after(line, [](Inputs&) {});
    EXPECT_TRUE(v.right) << line << ": " << v.sentence;
    EXPECT_GT(v.max_base, 0) << line;
  }
}

// A device may round operands to tf32, a CPU does not.
TEST(GradientJudge, AcceptsProductsOfTf32OnADevice) {
  const auto verdict = [](DeviceKind on, bool rounds, float factor) {
    Inputs in = make_inputs(parse_problem("bwd b1 h2 s80x60 d64/40 fp32 precision=tf32 causal_bottom_right"), 1);
    const Problem& p = in.problem;
    const reference::DenseGradients& right = (rounds ? in : in.exact()).oracle_gradients(default_executor());
    in.poison_outputs();
    for (const Role role : {Role::dq, Role::dk, Role::dv}) {
      const Tensor& t = in.tensors.*row_of(role).output;
      reference::each_number(p, in.tensors, row_of(role), t, [&](std::int64_t offset, std::int64_t index) {
        const auto x = static_cast<float>(right.of(role).value[static_cast<std::size_t>(index)]);
        store_element(t.data, t.dtype, offset, factor * x);
      });
    }
    return judge(in, default_executor(), on);
  };
  for (const bool rounds : {true, false}) {
    const Verdict v = verdict(DeviceKind::cuda, rounds, 1);
    EXPECT_TRUE(v.right) << v.sentence;
    EXPECT_EQ(verdict(DeviceKind::cpu, rounds, 1).right, !rounds);
    EXPECT_FALSE(verdict(DeviceKind::cuda, rounds, 1.01f).right);
  }
}

TEST(GradientJudge, RejectsWrongOnes) {
  for (const char* line : kLines) {
    for (const Role role : {Role::dq, Role::dk, Role::dv, Role::dbias, Role::dsinks, Role::dalibi_slopes}) {
      const RoleRow& row = row_of(role);
      const auto spoilt = [&](const std::function<float(float)>& f) {
        return after(line, [&](Inputs& in) { change(in.tensors.*row.output, f); });
      };
      if (!is_asked(parse_problem(line).gradients, role)) continue;
      int n = 0;
      EXPECT_FALSE(spoilt([](float) { return 0.0f; }).right) << row.name << " " << line;
      EXPECT_FALSE(spoilt([](float x) { return -x; }).right) << row.name << " " << line;
      EXPECT_FALSE(spoilt([](float x) { return x * 1.07f; }).right) << row.name << " " << line;
      EXPECT_FALSE(spoilt([&](float x) { return n++ == 1 ? NAN : x; }).right) << row.name << " " << line;
    }
  }
}

// A gradient that nothing reaches must be exactly 0: rows of causal masks that see no key.
TEST(GradientJudge, RejectsLeaksIntoEmptyRows) {
  const Verdict v = after(kLines[1], [](Inputs& in) {
    static_cast<std::uint16_t*>(in.tensors.dq.data)[0] = 0x3000;  // row 0 of 80 over 60 keys: 5e-10
  });
  EXPECT_FALSE(v.right);
  EXPECT_NE(v.sentence.find("nothing contributes to it"), std::string::npos) << v.sentence;
}

TEST(GradientJudge, RejectsTokensOfNoSequence) {
  const Verdict v = after(kLines[3], [](Inputs& in) {
    const Tensor& t = in.tensors.dk;  // 62 of 70 tokens are in a sequence
    static_cast<float*>(t.data)[65 * t.stride[0]] = 0;
  });
  EXPECT_EQ(v.sentence, "a gap between the rows of dk was written");
}

// dS without D, without the softcap's slope, and P from a forward that is not this one.
TEST(GradientJudge, RejectsGradientsOfAnotherFunction) {
  const auto wrong = [](const char* line, const std::function<void(Inputs&)>& spoil) {
    Inputs in = make_inputs(parse_problem(line), 1);
    const Tensors right = in.tensors;
    spoil(in);
    EXPECT_TRUE(run_on(reference::reference_implementations()[1], in, default_executor()));
    in.tensors = right;
    in.forget();
    const Verdict v = judge(in, default_executor());
    EXPECT_FALSE(v.right) << line;
  };
  std::vector<float> zeros(1 << 16);
  std::vector<std::uint16_t> zeros16(1 << 16);
  wrong(kLines[0], [&](Inputs& in) { in.tensors.out.data = zeros.data(); });
  wrong(kLines[1], [&](Inputs& in) { in.tensors.out.data = zeros16.data(); });
  wrong(kLines[0], [&](Inputs& in) { in.tensors.lse.data = zeros.data(); });
  wrong(kLines[0], [&](Inputs& in) { in.tensors.dlse.data = zeros.data(); });
}

// A weight near 1 of a score near 30, which tensor cores truncate and CPUs round.
TEST(GradientJudge, AllowsWhatTensorCoresTruncate) {
  const auto right = [](float units, DeviceKind on) {
    Inputs in = make_inputs(parse_problem("bwd h2/1 s1x1000 d64 fp32 dropout=0.2"), 650, Distribution::one_hot);
    EXPECT_TRUE(run_on(reference::reference_implementations()[1], in, default_executor()));
    change(in.tensors.dv, [&](float x) { return x * (1 - units * 0x1p-24f); });
    return judge(in, default_executor(), on).right;
  };
  EXPECT_FALSE(right(104, DeviceKind::cpu));
  EXPECT_TRUE(right(104, DeviceKind::cuda));
  EXPECT_FALSE(right(200, DeviceKind::cuda));
}

TEST(GradientJudge, HugeScoresAreNotJudged) {
  EXPECT_FALSE(can_judge(parse_problem(kLines[0]), Distribution::huge));
  EXPECT_TRUE(can_judge(parse_problem("fwd s5"), Distribution::huge));
}

}  // namespace
}  // namespace onepass::check
