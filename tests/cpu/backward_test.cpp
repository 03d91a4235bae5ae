// cpu.backward.* against the oracle: every feature, dtype and shape; its bits whatever the threads; what is not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string_view>

#include "base/text.hpp"
#include "check/check.hpp"
#include "cpu/amx_emulated.hpp"
#include "shapes/shapes.hpp"
#include "support/backward_problem.hpp"
#include "support/cpu_kernels.hpp"
#include "support/output_bytes.hpp"
#include "support/pokes.hpp"
#include "support/property.hpp"

namespace onepass::check {
namespace {

std::vector<const Implementation*> kernels() {
  auto rows = test::cpu_kernels(kBackward);
#if defined(__x86_64__)
  static const Implementation emulated = cpu::amx::emulated_backward();
  if (cpu::amx::has_avx512()) rows.push_back(&emulated);
#endif
  return rows;
}

void expect_right(Inputs& inputs, std::string_view what) { test::expect_all_right(kernels(), inputs, what); }

class BackwardShapes : public testing::TestWithParam<const char*> {};

// The forward's lists, each line with another distribution and placement.
TEST_P(BackwardShapes, EveryKernel) {
  const auto lines = test::shapes(GetParam());
  for (std::size_t n = 0; n < lines.size() && !testing::Test::HasFailure(); ++n) {
    const Problem p = test::backward_of(parse_problem(lines[n]), n % 5 == 3, n % 3 == 1);
    // In one-hot rows each score counts whole, and chains of 576 products are off by more than 2^-24 of their terms.
    const Distribution scores = p.dim_qk > 256 ? Distribution::normal : test::kDerivativeScores[n / 2 % 3];
    Inputs inputs = make_inputs(p, n, scores, static_cast<Placement>(n % 3));
    expect_right(inputs, name_of(scores));
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, BackwardShapes,
                         testing::Values("sizes.txt", "dims.txt", "heads.txt", "features.txt", "layouts.txt",
                                         "mods.txt", "block_masks.txt", "entropy.txt", "tf32.txt"),
                         test::stem);

// Features of a backward alone: parts of both kinds, the bias's gradient by turns and by sums, gradients one at a time.
constexpr const char* kLines[] = {
    "bwd b1 h1 s700x900 d64",
    "bwd b1 h2/1 s700x900 d64 bf16 causal_bottom_right grad=fp32",
    "bwd b2 h3/1 s1100x70 d40/72 causal_top_left",
    "bwd b1 h2/1 s40x3000 d128 fp16 window=700:0",
    "bwd b3 h4/2 s70x300 d64 bias=fp32:11qk grads=dq,dk,dv,dbias",
    "bwd b3 h4/2 s300x700 d32 bias=bf16:b1qk causal_bottom_right grads=dq,dk,dv,dbias",
    "bwd b3 h4/2 s300x700 d32 bias=fp16:1hqk window=90:20 grads=dbias",
    "bwd b2 h4/2 s300x700 d32 bias=fp32:bhqk softcap=20 grads=dq,dbias",
    "bwd b2 h4/2 s300x700 d32 bias=fp32:b11k grads=dq,dk,dv,dbias dropout=0.2 seed=3 dropout_start=4:3:2:8",
    "bwd b2 h4/2 s300x700 d32 bias=fp32:1hq1 grads=dq,dk,dv,dbias causal_top_left",
    "bwd b2 h4/2 s300x700 d32 bias=fp32:1111 grads=dq,dk,dv,dbias",
    "bwd b2 h4/2 s300x700 d32 bias=fp32:11q1 alibi sinks grads=dbias,dsinks,dalibi_slopes dlse",
    "bwd b2 h4/2 s130x133 d64 grads=dq dropout=0.5",
    "bwd h4/2 s130x133 d64 scale=1.2e-38",  // gradients below 2^-126 become 0
    "bwd h4/2 s130x133 d64 scale=1e-38",    // so does the scale
    "bwd h4/2 s130x133 d64 bf16 scale=-1.2e-38",
    "bwd h4/2 s130x133 d64 softcap=1e-6",  // which is less than a score's rounding
    "bwd h4/2 s130x133 d64 softcap=1e20",
    "bwd b2 h4/2 s130x133 d64 grads=dk softcap=4",
    "bwd b2 h4/2 s130x133 d64 bf16 grads=dv dropout=0.5 mask=b1qk",
    "bwd b2 h4/2 s130x133 d64/1 grads=dv",
    "bwd b2 h4/2 s131x700 d40/2 bf16 grads=dv causal_bottom_right grad=fp32",
    "bwd b1 h3/1 s1100x70 d33/3 grads=dv causal_top_left",
    "bwd b1 h2 s300x133 d64/4 fp16 grads=dv window=20:30 softcap=9",
    "bwd b1 h2 s300x133 d64/5 bf16 grads=dv bias=fp32:11qk",
    "bwd b2 h4/2 s130x133 d64/1 bf16 grads=dv,dsinks sinks dlse dropout=0.3",
    "bwd h4/2 d64/2 varlen=300,0,700,1/9,500,0,600 alibi causal_bottom_right grads=dv",
    "bwd b1 h2 s70x300 d16/1 grads=dv mask_mod={k_index % 3 != 1 && k_index < 200} score_mod={score * 0.5f}",
    "bwd b2 h4/2 s130x133 d64 grads=dsinks sinks dlse",
    "bwd b2 h4/2 s130x133 d64 grads=dalibi_slopes alibi causal_top_left",
    "bwd h4/2 d64 varlen=300,0,700,1/9,500,0,600 bias=fp32:11qk alibi sinks causal_bottom_right "
    "grads=dq,dk,dv,dbias,dsinks,dalibi_slopes dlse",
    "bwd h6/2 d48/80 bf16 varlen=0,40,400/700,0,300 bias=fp32:b11k softcap=20 dropout=0.2 window=200:30 "
    "grads=dq,dk,dv,dbias",
    "bwd b1 h2/1 s600x900 d64 score_mod={score + 3 * tanh(score) * exp(-fabs(score)) - sqrt(1.0f + score * score)} "
    "mask_mod={((q_index ^ k_index) & 3) != 0} softcap=30 bias=fp32:11qk grads=dq,dk,dv,dbias",
    "bwd b1 h2/1 s70x90 d16 score_mod={score * sin(score) + cos(3 * score)} grads=dq,dk",
    "bwd b2 h2 s0x5 d16 sinks grads=dq,dk,dv,dsinks",
    "bwd b2 h2 s5x0 d16 sinks grads=dq,dk,dv,dsinks dlse",
    "bwd b0 h2 s5x5 d16",
    "bwd b2 h2 s1x1 d1/1",
};

TEST(Backward, PartsAndSums) {
  std::size_t n = 0;
  for (const char* line : kLines) {
    Inputs inputs = make_inputs(parse_problem(line), n, Distribution::normal, static_cast<Placement>(n % 3));
    ++n;
    expect_right(inputs, "normal");
  }
}

TEST(Backward, TheSameBitsForAnyNumberOfThreads) {
  std::vector<std::shared_ptr<Executor>> executors;
  for (int threads : {1, 2, 3, 7}) executors.push_back(make_executor(threads));
  for (const char* line : kLines) {
    Inputs inputs = make_inputs(parse_problem(line), 5, Distribution::rising);
    for (const Implementation* row : kernels()) {
      if (!run_on(*row, inputs, serial_executor())) continue;
      const std::string expected = test::output_bytes(inputs);
      for (const auto& executor : executors) {
        ASSERT_TRUE(run_on(*row, inputs, *executor));
        EXPECT_TRUE(test::output_bytes(inputs) == expected)
            << row->name << " \"" << line << "\" with " << executor->workers() << " threads";
      }
    }
  }
}

// ---- what is not finite

constexpr const char* kPoked[] = {
    "bwd b1 h4/2 s70x100 d40",
    "bwd b1 h4/2 s70x100 d40 causal_bottom_right",
    "bwd b1 h4/2 s100x100 d64 bf16 causal_top_left",
    "bwd b1 h4/2 s100x100 d64 fp16 window=10:3",
    "bwd b1 h4/2 s70x100 d40 mask=11qk",
    "bwd b1 h4/2 s100x140 d64 bf16 mask=b1qk causal_bottom_right sinks softcap=30 grads=dq,dk,dv,dsinks",
    "bwd b1 h4/2 s70x100 d40 bias=fp32:bhqk alibi causal_top_left grads=dq,dk,dv,dbias,dalibi_slopes",
    "bwd b1 h4/2 s600x700 d40 causal_top_left",
    "bwd b1 h4/2 s70x100 d40 dropout=0.5 causal_top_left",
    "bwd b1 h4/2 s70x100 d40 causal_top_left mask_mod={k_index % 3 != 1} score_mod={score * 0.5f}",
    "bwd b1 h4/2 s70x100 d40/4 causal_top_left grads=dv",
    "bwd b1 h4/2 s100x140 d64/4 bf16 mask=b1qk softcap=30 grads=dv",
    "bwd b1 h4/2 s70x100 d40/4 dropout=0.5 grads=dv",
    "bwd b1 h4/2 s70x100 d40 grads=dv,dq causal_top_left",
    "bwd b1 h4/2 s70x100 d40 grads=dk softcap=30 causal_top_left",
    "bwd b1 h4/2 s70x100 d40 causal_bottom_right sinks softcap=30 entropy dentropy grads=dq,dk,dv,dsinks",
    "bwd b1 h4/2 s100x140 d64 bf16 mask=b1qk dropout=0.5 entropy dentropy dlse",
    "bwd b1 h4/2 s70x100 d40/4 causal_top_left entropy dentropy grads=dv",
};

class BackwardPropagation : public testing::TestWithParam<test::Poke> {};
TEST_P(BackwardPropagation, ReachesWhatSeesIt) {
  for (const char* line : kPoked) {
    Inputs inputs = make_inputs(parse_problem(line), 2);
    GetParam().poke(inputs);
    inputs.changed();
    expect_right(inputs, GetParam().name);
  }
}
INSTANTIATE_TEST_SUITE_P(Inputs, BackwardPropagation, testing::ValuesIn(test::kPokes),
                         [](const auto& poke) { return poke.param.name; });
INSTANTIATE_TEST_SUITE_P(Upstream, BackwardPropagation, testing::ValuesIn(test::kUpstreamPokes),
                         [](const auto& poke) { return poke.param.name; });

INSTANTIATE_TEST_SUITE_P(ManyInputs, BackwardPropagation, testing::ValuesIn(test::kManyPokes),
                         [](const auto& poke) { return poke.param.name; });
INSTANTIATE_TEST_SUITE_P(ManyUpstream, BackwardPropagation, testing::ValuesIn(test::kManyUpstreamPokes),
                         [](const auto& poke) { return poke.param.name; });

// An additive mask of the lowest number: a row that has nothing else is the mean of its values, and its LSE is -3.4e38.
TEST(Backward, ABiasOfTheLowestNumberSpoilsNothing) {
  for (const char* line :
       {"bwd b1 h1 s3 d16 fp32 bias=fp32:11qk grads=dq,dk,dv,dbias", "bwd b1 h2/1 s40x100 d40 fp32 bias=bf16:bhqk",
        "bwd b1 h2 s40x100 d64 bf16 bias=fp32:11qk", "bwd b1 h1 s40x50 d32 fp32 bias=fp32:11qk sinks softcap=20"}) {
    Inputs inputs = make_inputs(parse_problem(line), 2);
    const ConstTensor& bias = inputs.tensors.bias;
    const float lowest = -static_cast<float>(bias.dtype == DType::bf16 ? 0x1.fep127 : 0x1.fffffep127);
    for (std::int64_t b = 0; b < bias.shape[0]; ++b)
      for (std::int64_t h = 0; h < bias.shape[1]; ++h)
        for (std::int64_t j = 0; j < bias.shape[3]; ++j)
          store_element(Inputs::writable<void>(bias), bias.dtype,
                        b * bias.stride[0] + h * bias.stride[1] + bias.stride[2] + j * bias.stride[3], lowest);
    inputs.changed();
    expect_right(inputs, "a row of the lowest number");
    for (Role role : {Role::dq, Role::dk, Role::dv}) {
      const Tensor& t = inputs.tensors.*row_of(role).output;
      for (std::int64_t e = 0; e < t.elements(); ++e)  // contiguous
        ASSERT_TRUE(std::isfinite(load_element(t.data, t.dtype, e))) << row_of(role).name << " " << line;
    }
  }
}

// Rows that see nothing may have NaN in dO; so may keys that no row sees in K and V.
TEST(Backward, NothingLeaksFromWhatIsHidden) {
  for (const char* line :
       {"bwd b1 h2/1 s200x60 d40 causal_bottom_right", "bwd b1 h2/1 s60x200 d40 bf16 causal_top_left",
        "bwd b1 h2/1 s200x60 d40 causal_bottom_right sinks grads=dq,dk,dv,dsinks",
        "bwd b1 h2/1 s150x150 d40 causal_offset=-100 bias=fp32:11qk grads=dq,dk,dv,dbias"}) {
    Inputs inputs = make_inputs(parse_problem(line), 4);
    const Problem& p = inputs.problem;
    const BandMask band = band_mask(p, p.seq_q, p.seq_k);
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < p.seq_q; ++i) {
      const Range seen = band.keys_of(i);
      last = std::max<std::int64_t>(last, seen.hi);
      for (std::int64_t h = 0; seen.lo >= seen.hi && h < p.heads_q; ++h)
        for (std::int64_t d = 0; d < p.dim_v; ++d) test::set(inputs.tensors.dout, h, i, d, NAN);
    }
    for (std::int64_t j = last; j < p.seq_k; ++j) {
      test::set(inputs.tensors.k, 0, j, 1, NAN);
      test::set(inputs.tensors.v, 0, j, 1, INFINITY);
    }
    inputs.changed();
    expect_right(inputs, "hidden");
    for (Role role : {Role::dq, Role::dk, Role::dv}) {
      const Tensor& t = inputs.tensors.*row_of(role).output;
      for (std::int64_t e = 0; e < t.elements(); ++e)  // contiguous
        ASSERT_TRUE(std::isfinite(load_element(t.data, t.dtype, e))) << row_of(role).name << " " << line;
    }
  }
}

// dsinks of one row is a multiple of D, a sum of 195 products of both signs.
TEST(Backward, ASumThatCancelsIsRight) {
  Inputs inputs = make_inputs(parse_problem("bwd h3 s1x38 d195 fp16 aligned_offset=67 softcap=17 alibi sinks "
                                            "grads=dq,dk,dv,dsinks,dalibi_slopes"),
                              708, Distribution::normal);
  expect_right(inputs, "seed 708");
}

TEST(Backward, RandomProblemsAreRight) {
  test::check_cases(
      [] { return test::random_case(test::backward_of(test::random_problem(), test::flip(), test::rarely())); },
      [](const test::Case& c, test::Reproduction& r) { test::expect_all_right(c, kernels(), r); });
}

}  // namespace
}  // namespace onepass::check
