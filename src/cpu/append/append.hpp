// Appending to a cache on the CPU.
#pragma once
#include "problem/implementation.hpp"

namespace onepass::cpu {

extern const Implementation kAppendImplementation;  // "cpu.append"

}  // namespace onepass::cpu
