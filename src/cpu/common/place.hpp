// Where the CPU kernels compute, in the words in which every plan refuses the rest.
#pragma once
#include <cstdint>
#include <string>

#include "problem/problem.hpp"

namespace onepass::cpu {

// Why kernels compiled for a Highway target (0: for none in particular) cannot take the problem; empty if they can.
std::string why_elsewhere(const Problem& problem, std::int64_t target = 0);

}  // namespace onepass::cpu
