// The loads and launches that the fake driver has seen, and its answer to a launch.
#pragma once
#include "cuda/driver/api.hpp"

namespace onepass::cuda {

struct FakeLaunches {
  int launches = 0, modules = 0;
  LaunchConfig last{};
  Result result = 0;
};

}  // namespace onepass::cuda
