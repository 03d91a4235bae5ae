// Second derivatives on tensor cores: the host half of rows.cuh and keys.cuh. README.md holds the schedule.
#pragma once
#include <string>

#include "cuda/backward_jvp/config.hpp"
#include "cuda/backward_plain/backward_plain.hpp"

namespace onepass::cuda::backward_jvp {

// plain: that of the kernels in front and behind, and of blocks whose sums are not finite.
template <class Config>
struct PlanOf {
  backward_plain::Plan plain;
  Config config;
};
using Plan = PlanOf<SecondConfig>;
// The plan of a problem, which is as packed_problem() returns it, by the table: the first row that computes it and fits
// `shared_bytes` a CTA.
Selected<Plan> select_plan(const Problem& problem, int shared_bytes);
// The part of it that does not depend on the kernels of tiles. parts: warps of a CTA that hold the same tokens.
Selected<backward_plain::Plan> select_plain(const Problem& problem);
void set_parts(backward_plain::Plan& plan, int parts);

// keys: the kernel of dK and dV, else that of dQ. mods: mods_source of the problem with two derivatives.
KernelProgram program_of(bool keys, const Plan& plan, const std::string& arch, const std::string& mods);
int shared_bytes_of(bool keys, const Plan& plan);
std::int64_t blocks_of(bool keys, const PlainBackwardParams& params, const backward_plain::Plan& plan);
// The program of a kernel of tiles in `folder` of src but for its config.
KernelProgram tiles_program(bool keys, const backward_plain::Plan& plan, const std::string& folder,
                            const std::string& arch, const std::string& mods);

// A launch's parameters but for what a call brings; backward_plain's bind gives the call's addresses. held: tokens of a
// CTA.
PlainBackwardParams decided_params(const Problem& problem, const backward_plain::Plan& plan, int held, int l2_bytes);

extern const Implementation kImplementation;

}  // namespace onepass::cuda::backward_jvp
