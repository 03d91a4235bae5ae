// The merge operator on the CPU.
#pragma once
#include "problem/implementation.hpp"

namespace onepass::cpu {

const Implementation& merge_implementation();  // "cpu.merge"

}  // namespace onepass::cpu
