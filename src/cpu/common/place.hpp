// Where the CPU kernels compute, in the words in which every plan refuses the rest.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "problem/implementation.hpp"

namespace onepass::cpu {

// Highway's names of the targets that kernels are compiled for and this CPU has, best first.
std::vector<std::string> target_names();

// Why kernels compiled for a Highway target (0: for none in particular) cannot take the problem; empty if they can.
std::string why_elsewhere(const Problem& problem, std::int64_t target = 0);

// The plan of a kernel that takes every problem on the CPU.
template <class State>
Decision plan_here(const Request& request) {
  if (std::string why = why_elsewhere(*request.problem); !why.empty()) return Decision::no(why);
  return {{}, std::make_shared<State>(request)};
}

// Why kernels that count positions in 32 bits cannot take the problem; empty if they can.
std::string why_no_positions(const Problem& problem);

// The kernels of a Highway target among those of all targets.
template <class AnyKernels>
const auto& kernels_for(const AnyKernels& all, std::int64_t target) {
  return *std::ranges::find(all, target, [](const auto& k) { return k.target; });
}

// The plan of kernels of one Highway target, which count positions in 32 bits.
template <class State, class Kernels>
Decision plan_on(const Request& request, const Kernels& own) {
  if (std::string why = why_elsewhere(*request.problem, own.target); !why.empty()) return Decision::no(why);
  if (std::string why = why_no_positions(*request.problem); !why.empty()) return Decision::no(why);
  return {{}, std::make_shared<State>(request, own)};
}

// The same for one of the kernels of all targets, as a row of implementations has it.
template <class State, auto kernels, std::int64_t target>
Decision plan_isa(const Request& request) {
  return plan_on<State>(request, kernels_for(kernels(), target));
}

}  // namespace onepass::cpu
