// cpu.flash.*: every feature and shape against the oracle, on every instruction set this machine has.
#include "cpu/flash/flash.hpp"
#include "base/text.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "algebra/numerics.hpp"
#include "check/check.hpp"
#include "support/named_params.hpp"

namespace onepass::cpu {
namespace {

using check::Distribution;

std::vector<const Implementation*> usable() {
  std::vector<const Implementation*> rows;
  for (const Implementation& row : flash::implementations())
    if (why_not(row, parse_problem("fwd")).empty()) rows.push_back(&row);
  return rows;
}

class Flash : public testing::TestWithParam<const Implementation*> {
 protected:
  void expect_right(const std::string& line, Distribution distribution = Distribution::normal, std::uint64_t seed = 0) {
    check::Inputs inputs = check::make_inputs(parse_problem(line), seed, distribution);
    const check::Verdict verdict = check::check(*GetParam(), inputs);
    EXPECT_TRUE(verdict.accepted && verdict.right) << line << ", " << name_of(distribution) << ": " << verdict.sentence;
  }
};

TEST_P(Flash, HeadDims) {
  for (int d :
       {1, 2, 3, 5, 8, 16, 31, 32, 40, 59, 64, 72, 80, 96, 111, 128, 160, 192, 224, 255, 256, 257, 320, 511, 512}) {
    expect_right(text("fwd h2 s70x130 d", d, " lse causal_bottom_right"));
  }
  for (const char* d : {"1/256", "256/1", "192/128", "64/7", "5/96", "3/512", "512/30", "576/300", "576/512"})
    expect_right(text("fwd h2/1 s67x200 d", d, " lse"));
}

TEST_P(Flash, Lengths) {
  for (int q : {0, 1, 2, 3, 7, 17, 63, 64, 65, 129, 257}) {
    for (int k : {0, 1, 5, 95, 96, 97, 193}) expect_right(text("fwd h2 s", q, "x", k, " d24 lse causal_bottom_right"));
  }
  for (const char* line : {"fwd b0 h2 s8 d8 lse", "fwd b2 h0/1 s8 d8 lse", "fwd h1 s1023 d16 lse",
                           "fwd h1 s2049x1024 d8 lse causal_top_left"})
    expect_right(line);
}

TEST_P(Flash, Distributions) {
  for (Distribution distribution : {Distribution::normal, Distribution::rising, Distribution::one_hot}) {
    for (const char* dtype : {"fp32", "fp16", "bf16"}) {
      expect_right(text("fwd b2 h4/2 s200x333 d64 lse causal_bottom_right ", dtype), distribution);
    }
  }
}

// fp32 knows scores near 1e5 to 2^-7, so the weights of near ties to 1 %: in any order of summation another 1 %, which
// the rule, made for errors that average out, cannot compare. A wrong maximum or rescale is off by whole values of V.
TEST_P(Flash, HugeScores) {
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    check::Inputs inputs = check::make_inputs(
        parse_problem(text("fwd b2 h4/2 s200x333 d64 lse causal_bottom_right ", dtype)), 0, Distribution::huge);
    const check::Verdict verdict = check::check(*GetParam(), inputs);
    EXPECT_LE(verdict.lse_error, 1) << verdict.sentence;
    EXPECT_LT(verdict.max_error, 0.05) << verdict.sentence;
  }
}

TEST_P(Flash, Bands) {
  for (const char* band : {"causal_bottom_right", "causal_top_left", "window=0:0", "window=20:-1", "window=-1:9",
                           "window=300:0 aligned_top_left", "window=3:3 aligned_top_left",
                           "causal_top_left window=33:0", "causal_bottom_right window=100:0"}) {
    for (const char* shape : {"s150x300", "s300x150", "s260", "s1x500"}) {
      expect_right(text("fwd h2 ", shape, " d32 lse ", band));
      expect_right(text("fwd h6/2 ", shape, " d32 lse ", band));
    }
  }
}

TEST_P(Flash, Features) {
  const char* features[] = {"softcap=5",
                            "bias=fp32:bhqk",
                            "bias=fp16:111k",
                            "bias=bf16:1hq1",
                            "bias=fp32:11qk",
                            "mask=bhqk",
                            "mask=b11k",
                            "mask=1hq1",
                            "alibi",
                            "sinks",
                            "dropout=0.3 seed=17",
                            "dropout=1",
                            "scale=-0.3",
                            "scale=0",
                            "softcap=8 bias=fp16:b1qk mask=bhqk alibi sinks dropout=0.2 seed=5"};
  for (const char* feature : features) {
    for (const char* dtype : {"fp32", "bf16"}) {
      expect_right(text("fwd b2 h4/2 s90x150 d40/24 lse ", dtype, " ", feature));
      expect_right(
          text("fwd b2 h3 s150x210 d40/24 lse causal_bottom_right window=101:-1 layout=bshd ", dtype, " ", feature),
          Distribution::rising, 1);
    }
  }
}

TEST_P(Flash, HeadGroups) {
  for (const char* heads : {"2/1", "3/1", "5/1", "7/1", "8/2", "16/1", "64/2"})
    expect_right(text("fwd h", heads, " s37x100 d16 lse causal_bottom_right alibi sinks"));
}

TEST_P(Flash, StridesAndOutputTypes) {
  for (const char* rest : {"layout=bshd", "fp16 layout=bshd", "bf16 out=fp32", "fp16 out=fp32",
                           "strides=q:5000,2000,20;k:9000,0,24;v:0,4000,0;o:8000,24,50",
                           "strides=q:4000,2000,20;k:0,4000,-24;v:9000,4000,-24;o:4000,1900,19"}) {
    expect_right(text("fwd b2 h2 s70x110 d18/16 lse ", rest));
  }
  expect_right("fwd b2 h2 s400x110 d18/16 lse layout=bshd");
  expect_right(
      "fwd b2 h2 s400x110 d18/16 lse fp16 strides=q:20000,9000,20;k:0,4000,-24;v:9000,4000,-24;o:18000,8000,19");
}

TEST_P(Flash, VariableLengths) {
  for (const char* band : {"", "causal_bottom_right", "causal_top_left window=17:0"}) {
    expect_right(text("fwd h4/2 d32 lse varlen=3,0,100,1,300/7,20,0,1,280 ", band));
    expect_right(text("fwd h2 d32 lse fp16 alibi varlen=3,0,100,1,300/7,20,0,1,280 ", band));
  }
}

TEST_P(Flash, SplitsOfLongKeys) {
  for (const char* rest : {"", "causal_bottom_right", "sinks bf16", "window=700:0", "mask=1h1k"}) {
    expect_right(text("fwd h2/1 s20x5000 d32 lse ", rest));
    expect_right(text("fwd h2/1 s300x4100 d16 lse ", rest), Distribution::rising);
  }
}

TEST_P(Flash, NothingOutsideTheTensorsIsTouched) {
  for (check::Placement placement : {check::Placement::page_end, check::Placement::page_start}) {
    for (const char* line :
         {"fwd b2 h2/1 s70x101 d33/17 lse", "fwd h2 s70x101 d33/17 bf16 lse bias=bf16:bhqk mask=bhqk",
          "fwd h2 s300x101 d35/5 fp16 layout=bshd", "fwd h2 s300x101 d64 lse", "fwd h1 s9x101 d5/3"}) {
      check::Inputs inputs = check::make_inputs(parse_problem(line), 0, Distribution::normal, placement);
      const check::Verdict verdict = check::check(*GetParam(), inputs);
      EXPECT_TRUE(verdict.right) << line << ": " << verdict.sentence;
    }
  }
}

// Puts `value` into row `token` of K or V, head 0.
void poison(const ConstTensor& t, std::int64_t token, float value) {
  for (std::int64_t d = 0; d < t.shape[3]; d += 3)
    store_element(check::Inputs::writable<void>(t), t.dtype, row_offset(t, 0, 0, token) + d, value);
}

TEST_P(Flash, NanAndInfinityReachTheRowsThatSeeThem) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const char* line : {"fwd h4/2 s150x200 d32 lse causal_bottom_right", "fwd h4/2 s150x200 d32 lse window=30:5",
                           "fwd h4/2 s150x200 d32 bf16 lse mask=bhqk",
                           "fwd h2 s400x200 d20/30 fp16 lse causal_bottom_right dropout=0.4 seed=3",
                           "fwd h4/2 s3x4000 d32 lse window=30:0"}) {
    for (Distribution distribution : {Distribution::normal, Distribution::one_hot}) {
      for (float value : {std::nanf(""), kInf, -kInf}) {
        for (int where : {0, 1, 2}) {
          check::Inputs inputs = check::make_inputs(parse_problem(line), 0, distribution);
          const ConstTensor& t = where == 0 ? inputs.tensors.q : where == 1 ? inputs.tensors.k : inputs.tensors.v;
          if (where == 1 && value == value) continue;  // q * inf is a sum of infinities of any sign
          poison(t, t.shape[2] - 20 > 0 ? t.shape[2] - 20 : 1, value);
          inputs.changed();
          const check::Verdict verdict = check::check(*GetParam(), inputs);
          EXPECT_TRUE(verdict.right) << line << ", " << value << " in " << where << ": " << verdict.sentence;
        }
      }
    }
  }
}

TEST_P(Flash, AMaskedNanChangesNoBit) {
  check::Inputs clean = check::make_inputs(parse_problem("fwd h2 s100x300 d32 lse window=20:0")),
                dirty = check::make_inputs(clean.problem);
  poison(dirty.tensors.v, 5, NAN);  // before every window
  poison(dirty.tensors.k, 5, NAN);
  ASSERT_TRUE(check::run_on(*GetParam(), clean));
  ASSERT_TRUE(check::run_on(*GetParam(), dirty));
  EXPECT_EQ(std::memcmp(clean.tensors.out.data, dirty.tensors.out.data, 2 * 100 * 32 * sizeof(float)), 0);
}

TEST_P(Flash, ResultsDoNotDependOnTheThreads) {
  for (const char* line :
       {"fwd b2 h4/2 s300x400 d40 lse causal_bottom_right", "fwd h2/1 s20x5000 d32 lse sinks",
        "fwd b3 h4/2 s130x300 d24 bf16 lse dropout=0.3 seed=9", "fwd h4/2 d32 lse varlen=3,0,100,1,300/7,20,0,1,280"}) {
    check::Inputs inputs = check::make_inputs(parse_problem(line));
    std::vector<std::byte> first;
    for (int threads : {1, 2, 3, 7}) {
      const auto executor = make_executor(threads);
      ASSERT_TRUE(check::run_on(*GetParam(), inputs, *executor));
      std::vector<std::byte> now;
      for (const Role role : {Role::out, Role::lse}) {
        const check::Buffer& b = inputs.buffer(role);
        now.insert(now.end(), b.data(), b.data() + b.bytes());
      }
      if (first.empty()) first = now;
      EXPECT_EQ(now, first) << line << " with " << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, Flash, testing::ValuesIn(usable()), [](const auto& row) {
  const std::string name = row.param->name;
  return name.substr(name.rfind('.') + 1);
});

TEST(FlashList, RefusesWithASentence) {
  const Implementation& row = *usable().front();  // the list's first may be of instructions that this CPU lacks
  Problem p = parse_problem("fwd");
  p.device = {DeviceKind::cuda, 0};
  EXPECT_EQ(why_not(row, p), "it computes on the CPU only");
  p = parse_problem("fwd s1x3000000000");
  EXPECT_NE(why_not(row, p).find("3000000000"), std::string::npos);
}

}  // namespace
}  // namespace onepass::cpu
