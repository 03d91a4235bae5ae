// fp8_e4m3 on the CPU.
#pragma once
#include "problem/implementation.hpp"

namespace onepass::cpu {

extern const Implementation kQuantizeImplementation;  // "cpu.quantize"
// The decision of a row of the CPU's on q, k and v that this quantizes.
Decision quantized_first(const Request& request, const Implementation& attention);

}  // namespace onepass::cpu
