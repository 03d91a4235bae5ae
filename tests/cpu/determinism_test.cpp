// Bitwise the same result, whatever the number of threads and however often: tasks are cut by shape alone.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "check/check.hpp"
#include "ladder/reference.hpp"
#include "plan/implementations.hpp"
#include "shapes/shapes.hpp"

namespace onepass::check {
namespace {

std::vector<std::byte> outputs(const Inputs& inputs) {
  std::vector<std::byte> bytes;
  for (const Buffer* b : {&inputs.buffers[3], &inputs.buffers[4]})
    bytes.insert(bytes.end(), b->data(), b->data() + b->bytes());
  return bytes;
}

TEST(Determinism, AnyNumberOfThreadsAndAnyRepeat) {
  std::vector<std::shared_ptr<Executor>> executors;
  for (int threads : {1, 2, 3, 7}) executors.push_back(make_executor(threads));
  int compared = 0;
  for (const std::string& line : test::shapes("determinism.txt")) {
    Inputs inputs = make_inputs(parse_problem(line), 3, Distribution::rising);
    for (const Implementation* row : plan::implementations()) {
      if (row == &ladder::reference_implementation() || !run_on(*row, inputs, serial_executor())) continue;
      const auto expected = outputs(inputs);
      for (const auto& executor : executors) {
        for (int repeat = 0; repeat < 2; ++repeat, ++compared) {
          ASSERT_TRUE(run_on(*row, inputs, *executor));
          const auto got = outputs(inputs);
          EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size()), 0)
              << row->name << " \"" << line << "\" with " << executor->workers() << " threads";
        }
      }
    }
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace onepass::check
