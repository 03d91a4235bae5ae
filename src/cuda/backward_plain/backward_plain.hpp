// Gradients and second derivatives on CUDA without tensor cores: the host half of stats.cuh, rows.cuh, keys.cuh and
// bias.cuh. README.md holds the schedule.
#pragma once
#include <string>

#include "cuda/attention/host.hpp"
#include "cuda/backward_plain/config.hpp"
#include "cuda/compile/program.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda::backward_plain {

struct Plan {
  PlainBackwardFeatures features;
  BackwardShape shape;
};
// The plan of a problem, which is as packed_problem() returns it.
Selected<Plan> select_plan(const Problem& problem);
inline TileShape mask_tile_of(const BackwardShape& shape) { return {64, shape.block_k, 0}; }

// The kernels, in the order of their launches. Those that a problem does not need have no CTAs.
enum class Part { stats, rows, keys, bias, sums };
inline constexpr Part kParts[] = {Part::stats, Part::rows, Part::keys, Part::bias, Part::sums};
// mods: mods_source of the problem with derivatives_of() derivatives.
KernelProgram program_of(Part part, const Plan& plan, const std::string& arch, const std::string& mods);
int derivatives_of(const Plan& plan);  // of score_mod
std::int64_t blocks_of(Part part, const PlainBackwardParams& params, const Plan& plan);
int threads_of(Part part);
int shared_bytes_of(Part part, const BackwardShape& shape);

// Places within the workspace, in bytes; total: of it.
struct Places {
  std::size_t statistics, moved, sink_parts, slope_parts, row_marks, key_marks, mask, total;
};
Places places_of(const Problem& problem, const Plan& plan);

// A launch's parameters but for what a call brings, and a call's addresses.
PlainBackwardParams decided_params(const Problem& problem, const Plan& plan, int l2_bytes);
void bind(PlainBackwardParams& params, const Tensors& tensors, void* workspace, const Places& places);

// Gradients, and their derivatives along tangents.
extern const Implementation kFirstImplementation, kSecondImplementation;

}  // namespace onepass::cuda::backward_plain
