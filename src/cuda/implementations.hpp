// What the CUDA backend offers, best first.
#pragma once
#include <vector>

#include "problem/implementation.hpp"

namespace onepass::cuda {

std::vector<const Implementation*> implementations();

}  // namespace onepass::cuda
