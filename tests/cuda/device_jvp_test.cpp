// Every CUDA kernel of the forward mode on the forward mode of every line of tests/shapes, and of random problems.
#include "device_derivatives.hpp"
#include "support/jvp_problem.hpp"

namespace onepass::check {
namespace {

class DeviceJvp : public OnDevice<testing::TestWithParam<const char*>> {};
TEST_P(DeviceJvp, EveryImplementationIsRight) {
  judge_shapes(GetParam(),
               [](const Problem& forward, std::size_t n) { return test::jvp_of(forward, n % 3 != 1, n % 4 != 2); });
}
INSTANTIATE_TEST_SUITE_P(Shapes, DeviceJvp,
                         testing::Values("sizes.txt", "features.txt", "layouts.txt", "mods.txt", "block_masks.txt"),
                         test::stem);

using DeviceJvpRandom = OnDevice<testing::Test>;
TEST_F(DeviceJvpRandom, EveryImplementationIsRight) {
  judge_random(31, [] { return test::jvp_of(test::random_problem(), test::flip(), test::flip()); });
}

}  // namespace
}  // namespace onepass::check
