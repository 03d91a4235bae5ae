// Every CUDA implementation on every line of tests/shapes, judged by the rule of docs/reference/conventions.md, with
// poison around everything. Needs a GPU and says so where there is none; `./dev gpu` runs it.
#include "device.hpp"
#include "base/text.hpp"

namespace onepass::check {
namespace {

// Normal scores and one other distribution, in turn, as on the CPU.
bool judge_line(const std::string& line, std::size_t n, Findings& findings) {
  if (takers_of(on_device(line)).empty()) return false;
  for (const Distribution distribution : {Distribution::normal, kDistributions[1 + n % 3]}) {
    Inputs inputs = make_inputs(parse_problem(line), n, distribution);
    findings.judge(inputs, text(line, "\" seed ", n, " ", name_of(distribution), "\""));
  }
  return true;
}

class Device : public OnDevice<testing::TestWithParam<const char*>> {};

TEST_P(Device, EveryImplementationIsRight) {
  const auto lines = test::shapes(GetParam());
  Findings findings;
  std::vector<char> taken(lines.size());
  in_parallel(lines.size(), [&](std::size_t n) {
    try {
      taken[n] = judge_line(lines[n], n, findings);
    } catch (const std::exception& e) {
      findings.wrong(lines[n] + ": " + e.what());
    }
  });
  findings.report();
  const auto refused = std::ranges::count(taken, 0);
  if (refused != 0) {
    std::printf("  no implementation takes %ld lines, such as \"%s\"\n", static_cast<long>(refused),
                lines[static_cast<std::size_t>(std::ranges::find(taken, 0) - taken.begin())].c_str());
  }
}

// huge.txt maps more memory than a device has, and is for `onepass check`, line by line.
INSTANTIATE_TEST_SUITE_P(Shapes, Device,
                         testing::Values("sizes.txt", "long.txt", "decoding.txt", "dims.txt", "heads.txt", "fp8.txt",
                                         "features.txt", "layouts.txt", "cache.txt", "merge.txt", "softmax.txt",
                                         "mods.txt", "block_masks.txt", "peers.txt", "quantize.txt", "flat_gemm.txt",
                                         "entropy.txt", "entropy_cache.txt", "tf32.txt"),
                         test::stem);

using DeviceRepeats = OnDevice<testing::Test>;
TEST_F(DeviceRepeats, AHundredTimesTheSameBits) {
  const cuda::ContextScope scope(cuda::device_facts(0));
  int compared = 0;
  for (const std::string& line : test::shapes("determinism.txt")) {
    Inputs inputs = make_inputs(parse_problem(line), 3, Distribution::rising);
    compared += expect_same_bits(inputs);
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace onepass::check
