// The implementations of the CUDA backend, best first.
#pragma once
#include <vector>

#include "problem/implementation.hpp"

namespace onepass::cuda {

std::vector<const Implementation*> implementations();

}  // namespace onepass::cuda
