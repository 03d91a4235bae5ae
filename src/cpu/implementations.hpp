// The implementations of the CPU backend, best first.
#pragma once
#include <span>

#include "problem/implementation.hpp"

namespace onepass::cpu {

std::span<const Implementation> implementations();

}  // namespace onepass::cpu
