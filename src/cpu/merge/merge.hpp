// The merge operator on the CPU.
#pragma once
#include "problem/implementation.hpp"

namespace onepass::cpu {

extern const Implementation kMergeImplementation;  // "cpu.merge"

}  // namespace onepass::cpu
