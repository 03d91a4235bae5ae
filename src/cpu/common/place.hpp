// Where the CPU kernels compute, in the words in which every plan refuses the rest.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "problem/implementation.hpp"

namespace onepass::cpu {

// Why kernels compiled for a Highway target (0: for none in particular) cannot take the problem; empty if they can.
std::string why_elsewhere(const Problem& problem, std::int64_t target = 0);

// The plan of a kernel that takes every problem on the CPU.
template <class State>
Decision plan_here(const Request& request) {
  if (std::string why = why_elsewhere(*request.problem); !why.empty()) return Decision::no(why);
  return {{}, std::make_shared<State>(request)};
}

}  // namespace onepass::cpu
