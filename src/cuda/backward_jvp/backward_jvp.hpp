// Second derivatives on tensor cores: the host half of rows.cuh and keys.cuh. README.md holds the schedule.
#pragma once
#include <string>

#include "cuda/backward_jvp/config.hpp"
#include "cuda/backward_plain/backward_plain.hpp"

namespace onepass::cuda::backward_jvp {

// plain: that of the kernels in front and behind, and of blocks whose sums are not finite.
struct Plan {
  backward_plain::Plan plain;
  SecondConfig config;
};
// The plan of a problem, which is as packed_problem() returns it, by the table: the first row that computes it and fits
// `shared_bytes` a CTA.
Selected<Plan> select_plan(const Problem& problem, int shared_bytes);

// keys: the kernel of dK and dV, else that of dQ. mods: mods_source of the problem with two derivatives.
KernelProgram program_of(bool keys, const Plan& plan, const std::string& arch, const std::string& mods);
int shared_bytes_of(bool keys, const Plan& plan);
std::int64_t blocks_of(bool keys, const PlainBackwardParams& params, const Plan& plan);

// A launch's parameters but for what a call brings; backward_plain's bind gives the call's addresses.
PlainBackwardParams decided_params(const Problem& problem, const Plan& plan, int l2_bytes);

extern const Implementation kImplementation;

}  // namespace onepass::cuda::backward_jvp
