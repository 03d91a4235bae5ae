// The ceilings of the machine, measured in the run they are compared with.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace onepass::bench {

enum class Isa { avx512, avx2, neon };

// The instruction set an implementation's name ends in ("cpu.flash.avx2"); avx512 for AMX rows, whose fp32 peak it is.
bool isa_of(const std::string& implementation, Isa& isa);

// Seconds of this thread's CPU time for `rounds` rounds of independent fused multiply-adds in registers, and how many
// floating-point operations (2 per multiply-add and lane) one round is.
double fma_seconds(Isa isa, std::int64_t rounds);
std::int64_t fma_flops_per_round(Isa isa);

// Reads n floats at a and n at b as two interleaved streams (K and V), with software prefetch: the fastest plain read
// found on the machines tried. Returns seconds of this thread's CPU time.
double read_seconds(const float* a, const float* b, std::size_t n);

double thread_seconds();  // CPU time of the calling thread
double wall_seconds();

}  // namespace onepass::bench
