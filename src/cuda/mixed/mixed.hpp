// One call for sequences with few rows and with many: what a serving engine's step consists of.
#pragma once
#include "problem/implementation.hpp"

namespace onepass::cuda {

extern const Implementation kMixedImplementation;

}  // namespace onepass::cuda
