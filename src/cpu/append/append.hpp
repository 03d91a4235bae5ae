// Appending to a cache on the CPU.
#pragma once
#include "problem/implementation.hpp"

namespace onepass::cpu {

const Implementation& append_implementation();  // "cpu.append"

}  // namespace onepass::cpu
