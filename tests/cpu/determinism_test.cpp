// Bitwise the same result, whatever the number of threads and however often: tasks are cut by shape alone.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "reference/reference.hpp"
#include "shapes/shapes.hpp"
#include "support/output_bytes.hpp"

namespace onepass::check {
namespace {

TEST(Determinism, AnyNumberOfThreadsAndAnyRepeat) {
  std::vector<std::shared_ptr<Executor>> executors;
  for (int threads : {1, 2, 3, 7}) executors.push_back(make_executor(threads));
  int compared = 0;
  for (const std::string& line : test::shapes("determinism.txt")) {
    Inputs inputs = make_inputs(parse_problem(line), 3, Distribution::rising);
    for (const Implementation* row : plan::implementations()) {
      if (reference::is_reference(*row) || !run_on(*row, inputs, serial_executor())) continue;
      const std::string expected = test::output_bytes(inputs);
      for (const auto& executor : executors) {
        for (int repeat = 0; repeat < 2; ++repeat, ++compared) {
          ASSERT_TRUE(run_on(*row, inputs, *executor));
          EXPECT_TRUE(test::output_bytes(inputs) == expected)
              << row->name << " \"" << line << "\" with " << executor->workers() << " threads";
        }
      }
    }
  }
  EXPECT_GT(compared, 0);
}

// One plan, one executor, many callers.
TEST(Determinism, ConcurrentCalls) {
  for (const char* line : {"b2 h4/2 s130x300 d64 fp32 causal_bottom_right lse", "b1 h8/2 s1x3000 d64 bf16 lse"}) {
    Inputs inputs = make_inputs(parse_problem(line));
    for (const Implementation* row : plan::implementations()) {
      if (reference::is_reference(*row) || !run_on(*row, inputs)) continue;
      const std::string expected = test::output_bytes(inputs);
      const Tensors& a = inputs.tensors;
      const Plan plan = make_plan(inputs.problem, row->name);
      std::vector<std::thread> callers;
      std::vector<std::string> got(4);
      for (std::string& mine : got) {
        callers.emplace_back([&] {
          std::vector<float> out(static_cast<std::size_t>(a.out.elements())),
              lse(static_cast<std::size_t>(a.lse.elements()));
          std::vector<std::byte> memory(plan.workspace_bytes() + 64);
          Tensors own = a;
          own.out.data = out.data();
          own.lse.data = lse.data();
          const std::size_t misfit = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
          for (int repeat = 0; repeat < 20; ++repeat)
            run(plan, own, {.workspace = {memory.data() + (64 - misfit) % 64, plan.workspace_bytes()}});
          mine.append(reinterpret_cast<const char*>(out.data()), inputs.buffer(Role::out).bytes());
          mine.append(reinterpret_cast<const char*>(lse.data()), inputs.buffer(Role::lse).bytes());
        });
      }
      for (std::thread& caller : callers) caller.join();
      for (const std::string& bytes : got) EXPECT_TRUE(bytes == expected) << row->name << " \"" << line << "\"";
    }
  }
}

}  // namespace
}  // namespace onepass::check
