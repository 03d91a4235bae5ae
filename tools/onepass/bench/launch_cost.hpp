// Host time of a call, on a problem so small that nothing else counts: run(plan), and the one-call function beside it.
#pragma once
#include <string>

#include "plan/plan.hpp"
#include "problem/problem.hpp"

namespace onepass::bench {

struct LaunchCost {
  std::string problem, implementation;
  double bare_s = 0;  // the driver's launch of an empty kernel with the same bytes of parameters; 0 on the CPU
  double run_s = 0, attention_s = 0;
};
LaunchCost measure_launch(const Problem& problem, const std::string& implementation);

// On a CUDA device. The device is never behind.
LaunchCost measure_device_launch(const Problem& problem, const std::string& implementation);

}  // namespace onepass::bench
