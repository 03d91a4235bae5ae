// Every CUDA backward on the backward of every line of tests/shapes, of random problems, and the same bits every time.
#include "device_derivatives.hpp"
#include "support/backward_problem.hpp"

namespace onepass::check {
namespace {

// deterministic in every second one; gradients in fp32 and a dLSE in some.
Problem backward_of_line(const Problem& forward, std::size_t n) {
  Problem p = test::backward_of(forward, n % 5 == 3, n % 3 == 1);
  p.deterministic = n % 2 == 1;
  return p;
}

class DeviceBackward : public OnDevice<testing::TestWithParam<const char*>> {};
TEST_P(DeviceBackward, EveryImplementationIsRight) { judge_shapes(GetParam(), backward_of_line); }
INSTANTIATE_TEST_SUITE_P(Shapes, DeviceBackward,
                         testing::Values("sizes.txt", "dims.txt", "heads.txt", "features.txt", "layouts.txt",
                                         "mods.txt", "block_masks.txt", "entropy.txt", "tf32.txt"),
                         test::stem);

using DeviceBackwardRandom = OnDevice<testing::Test>;
TEST_F(DeviceBackwardRandom, EveryImplementationIsRight) {
  judge_random(20, [] { return backward_of_line(test::random_problem(), test::among(0, 29)); });
}

using DeviceBackwardRepeats = OnDevice<testing::Test>;
TEST_F(DeviceBackwardRepeats, AHundredTimesTheSameBits) {
  const cuda::ContextScope scope(cuda::device_facts(0));
  int compared = 0;
  for (const char* line :
       {"bwd b2 h8/2 s1100 d64 bf16 causal_bottom_right deterministic", "bwd b2 h4 s1000x700 d128 fp16 deterministic",
        "bwd b1 h4 s900 d256 bf16 deterministic", "bwd b2 h4/2 s600 d64 fp32 deterministic",
        "bwd b2 h8/2 s1100x2300 d128 bf16 block_mask=bhqk mask_tile_q=64 causal_bottom_right deterministic",
        "bwd b2 h4 s2300 d64 bf16 block_mask=1hqk mask_tile_k=64 deterministic",
        "bwd b1 h4 s900 d256 bf16 block_mask=11qk mask_tile_q=64 deterministic",
        "bwd b2 h4/2 s600 d64 fp32 block_mask=1hqk mask_tile_q=64 mask_tile_k=64 deterministic",
        "bwd b2 h4/2 s600 d128 bf16 bias=bf16:11qk sinks alibi grads=dq,dk,dv,dbias,dsinks,dalibi_slopes deterministic",
        "bwd h4/2 d128 bf16 varlen=1,300,0,665,1/300,200,7,0,500 causal_bottom_right deterministic"}) {
    Inputs inputs = make_inputs(parse_problem(line), 3, Distribution::rising);
    compared += expect_same_bits(inputs);
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace onepass::check
