// The AMX backend's host half: which problems it takes, how it cuts them into tasks, and the kernels it needs.
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "cpu/amx/task.hpp"
#include "problem/implementation.hpp"

namespace onepass::cpu::amx {

// The sentence that says what this CPU or kernel lacks; empty if tiles can be used. The first call asks the kernel for
// the right to use them, for the whole process.
std::string missing_hardware();
// Refusals for reasons of the problem alone.
std::string refuses(const Problem& problem);
// The decision for given kernels, whatever the hardware.
Decision plan(const Request& request, const Kernels& kernels);

Kernels hardware_kernels();
std::span<const Implementation> implementations();  // "cpu.amx.bf16"; x86-64 only

}  // namespace onepass::cpu::amx
