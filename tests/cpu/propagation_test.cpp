// NaN and infinity in an input reach the rows that see them, and no other row.
#include <gtest/gtest.h>

#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "support/cpu_kernels.hpp"
#include "support/pokes.hpp"

namespace onepass::check {
namespace {

using test::Poke;

constexpr const char* kLines[] = {
    "b1 h4/2 s70x100 d40 fp32 lse",
    "b1 h4/2 s70x100 d40 fp32 causal_bottom_right lse row_max",
    "b1 h4/2 s100x100 d64 bf16 causal_top_left lse",
    "b1 h4/2 s100x100 d64 fp16 window=10:3 lse row_max",
    "b1 h4/2 s70x100 d40 fp32 mask=11qk lse",
    "b1 h4/2 s100x140 d64 bf16 mask=b1qk causal_bottom_right sinks softcap=30 lse row_max",
    "b1 h4/2 s70x100 d40 fp32 bias=fp32:bhqk alibi lse",
    "b1 h4/2 s220x300 d40 fp32 mask_mod={q_index / 96 == k_index / 96} lse row_max",
    "b1 h4/2 s1x3000 d64 fp32 lse",
    "b1 h4/2 s2x3000 d64 bf16 window=2950:0 lse row_max",
    "b1 h4/2 s3x1000 d128 fp32 mask=11qk lse",
    "b1 h4/2 s40x3000 d40 fp32 causal_top_left lse row_max",
    "b1 h4/2 s40x3000 d64 bf16 bias=fp32:11qk lse",
    "b1 h4/2 s70x100 d40 fp32 dropout=0.5 lse row_max",
    "b1 h4/2 s2x3000 d40 bf16 dropout=0.5 lse",
    "b1 h4/2 s70x100 d40 fp32 causal_bottom_right lse entropy",
    "b1 h4/2 s2x3000 d64 bf16 mask=b1qk sinks lse entropy",
    "b1 h4/2 s40x3000 d40 fp32 batch_invariant entropy",
    "b1 h4/2 s3x3000 d40 fp32 batch_invariant entropy",
    "b1 h4/2 s150x200 d32 fp32 window=30:5 lse",
    "b1 h4/2 s150x200 d32 bf16 mask=bhqk lse",
    "b1 h2 s400x200 d20/30 fp16 causal_bottom_right dropout=0.4 seed=3 lse",
    "b1 h4/2 s3x4000 d32 fp32 window=30:0 lse",
    "b1 h4/2 s4x90 d40 fp32 causal_bottom_right",
    "b1 h2/1 s4x50 d64 fp16 window=9:0 layout=bshd",
    "b1 h2/1 s4x50 d64 fp32 dropout=0.5 causal_top_left",
    "b1 h4/2 s4x3000 d40 fp32 causal_bottom_right entropy",
};

class Propagation : public testing::TestWithParam<Poke> {};

TEST_P(Propagation, ReachesTheRowsThatSeeIt) {
  for (const char* line : kLines) {
    for (Distribution distribution : {Distribution::normal, Distribution::huge}) {  // huge: most weights underflow
      Inputs inputs = make_inputs(parse_problem(line), 2, distribution);
      GetParam().poke(inputs);
      test::expect_all_right(test::cpu_kernels(kForward), inputs, name_of(distribution));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Cpu, Propagation, testing::ValuesIn(test::kPokes),
                         [](const auto& poke) { return poke.param.name; });

INSTANTIATE_TEST_SUITE_P(CpuMany, Propagation, testing::ValuesIn(test::kManyPokes),
                         [](const auto& poke) { return poke.param.name; });

float bias_at(std::int64_t i, std::int64_t j) {
  return i == 5 && j == 9 ? NAN : i == 6 ? -INFINITY : i == 7 && j > 0 ? -INFINITY : 0;
}

// NaN in a bias poisons its row; a row of -inf is empty; one finite entry is a one-hot row.
TEST(Propagation, ThroughTheBias) {
  for (const char* line : {"b1 h2 s40x100 d32 fp32 bias=fp32:11qk lse row_max",
                           "b1 h2 s40x100 d32 bf16 bias=bf16:11qk sinks lse row_max"}) {
    Inputs inputs = make_inputs(parse_problem(line));
    const ConstTensor& bias = inputs.tensors.bias;
    for (std::int64_t i = 0; i < 40; ++i) {
      for (std::int64_t j = 0; j < 100; ++j)
        store_element(Inputs::writable<void>(bias), bias.dtype, i * bias.stride[2] + j, bias_at(i, j));
    }
    test::expect_all_right(plan::implementations(), inputs, "a bias");
  }
}

}  // namespace
}  // namespace onepass::check
