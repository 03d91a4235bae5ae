// cpu.amx_backward: cpu.backward with its five products on tiles, for bf16.
#pragma once
#include <span>
#include <string>

#include "cpu/backward/backward.hpp"

namespace onepass::cpu::amx {

std::string refuses_backward(const Problem& problem);
// The decision for given kernels, whatever the hardware.
Decision plan_backward(const Request& request, const backward::Kernels& kernels);
std::span<const Implementation> backward_implementations();  // "cpu.amx_backward"; x86-64 only

}  // namespace onepass::cpu::amx
