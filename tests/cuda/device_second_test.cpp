// Every CUDA kernel of second derivatives on those of every line of tests/shapes, and of random problems.
#include "device_derivatives.hpp"
#include "support/cpu_kernels.hpp"
#include "support/second_problem.hpp"

namespace onepass::check {
namespace {

class DeviceSecond : public OnDevice<testing::TestWithParam<const char*>> {};
TEST_P(DeviceSecond, EveryImplementationIsRight) {
  judge_shapes(GetParam(), [](const Problem& forward, std::size_t n) {
    return test::second_of(forward,
                           {.tdout = n % 3 != 1, .along_side = n % 4 != 1, .dlse = n % 4 == 2, .f32 = n % 5 == 3});
  });
}
INSTANTIATE_TEST_SUITE_P(Shapes, DeviceSecond,
                         testing::Values("sizes.txt", "features.txt", "layouts.txt", "mods.txt", "block_masks.txt",
                                         "tf32.txt"),
                         test::stem);

using DeviceSecondDims = OnDevice<testing::Test>;
TEST_F(DeviceSecondDims, EveryImplementationIsRight) {
  std::vector<std::string> lines;
  for (const char* line :
       {"bwd_jvp b1 h2/1 s70x90 d{1|8|59|64/72|128|256|512|300/280|40/512|576/512} {fp32|bf16} tdout",
        "bwd_jvp h4/2 d320 fp16 varlen=3,0,70/130,7,90 causal_bottom_right",
        "bwd_jvp b2 h2/1 s40x70 d512 bf16 softcap=20 bias=fp32:bhqk tbias alibi sinks tsinks "
        "mask=b1qk dropout=0.2 seed=7 tdout grads=dq,dk,dv,dbias,dsinks,dalibi_slopes"})
    test::expand(line, lines);
  std::vector<Problem> problems;
  for (const std::string& line : lines) problems.push_back(parse_problem(line));
  judge_problems(problems);
}

using DeviceSecondRandom = OnDevice<testing::Test>;
TEST_F(DeviceSecondRandom, EveryImplementationIsRight) {
  judge_random(52, [] {
    const Problem p = test::random_problem();
    return test::second_of(
        p, {.tdout = test::flip(), .along_side = test::flip(), .dlse = test::flip(), .f32 = test::rarely()});
  });
}

// An element of each input that is not finite reaches what the textbook says, and nothing else.
using DeviceSecondNonFinite = OnDevice<testing::Test>;
TEST_F(DeviceSecondNonFinite, NanAndInfinity) {
  const char* const lines[] = {"bwd_jvp b1 h2/1 s70x200 d40/24 fp32 causal_bottom_right tdout dlse tdlse",
                               "bwd_jvp b1 h2 s30x150 d16 bf16 window=20:0 dropout=0.3 seed=4 tdout",
                               "bwd_jvp h2 d8 fp32 varlen=3,40/2,130"};
  constexpr Role kPoked[] = {Role::q,  Role::k,  Role::v,    Role::dout,  Role::tq,
                             Role::tk, Role::tv, Role::dlse, Role::tdout, Role::tdlse};
  Findings findings;
  test::with_one_not_finite(lines, kPoked,
                            [&](Inputs& inputs, const std::string& what) { findings.judge(inputs, what); });
  findings.report();
}

using DeviceSecondRepeats = OnDevice<testing::Test>;
TEST_F(DeviceSecondRepeats, AHundredTimesTheSameBits) {
  const cuda::ContextScope scope(cuda::device_facts(0));
  int compared = 0;
  for (const char* line : {"bwd_jvp b2 h4/2 s600 d64 bf16 causal_bottom_right tdout",
                           "bwd_jvp h4/2 d128 fp32 varlen=1,300,0,665/300,200,7,500 bias=fp32:11qk sinks alibi tdout "
                           "grads=dq,dk,dv,dbias,dsinks,dalibi_slopes"}) {
    Inputs inputs = make_inputs(parse_problem(line), 3, Distribution::rising);
    compared += expect_same_bits(inputs);
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace onepass::check
