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
// "cpu.amx.one_result": the same for batch_invariant alone, to stand before the kernels of few rows. All rows of these
// calls are its own, since weights in bf16 have other bits than theirs.
std::span<const Implementation> one_result_implementations();

// With batch_invariant: few rows of a head. Their keys are packed split by split, and splits are tasks (few_rows.cpp).
bool has_few_rows(const Problem& problem);
Decision plan_few_rows(const Request& request, const Kernels& kernels);

}  // namespace onepass::cpu::amx
