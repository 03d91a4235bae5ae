// The forward mode kernel family cpu.jvp.*: attention and its derivative along tangents of q, k, v, bias and sinks.
// Rows, panels, tiles, tasks and the score features are those of cpu.flash (src/cpu/flash/flash.hpp). README.md holds
// the schedule.
#pragma once
#include <cstdint>
#include <span>

#include "cpu/flash/flash.hpp"
#include "problem/implementation.hpp"

namespace onepass::cpu::jvp {

// The same call twice: on q, k, v and out, and on their tangents in the same places.
struct Call {
  flash::Call primal, tangent;
};

// One worker's memory. tangent: Q's, the sums of O's derivative, P dS as scores, and a block of the tangents of K and
// V.
struct Scratch {
  flash::Scratch primal, tangent;
  float* mu;                                         // [panels][panel]: the sums of P dS
  float *cap_slope = nullptr, *mod_slope = nullptr;  // [block + 3][panel]
  float* tbias = nullptr;                            // [block + 3][panel]
  float *duals = nullptr, *dual_numbers = nullptr;   // of a score_mod (flash/slopes-inl.h)
};

struct Kernels {
  const char* isa;
  std::int64_t target;  // Highway's bit
  flash::Geometry geometry;
  void (*pack)(const flash::Call&, const flash::Task&, std::int64_t key_lo, std::int64_t key_hi);
  void (*run)(const Call&, const flash::Task&, const Scratch&);
};
std::span<const Kernels> kernels();  // of every compiled instruction set, best first

std::span<const Implementation> implementations();  // a row for each of them

}  // namespace onepass::cpu::jvp
