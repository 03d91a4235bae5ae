// fp8_e4m3 on the CPU.
#pragma once
#include "problem/implementation.hpp"

namespace onepass::cpu {

const Implementation& quantize_implementation();  // "cpu.quantize"

}  // namespace onepass::cpu
