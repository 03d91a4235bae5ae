// Forward attention by mma.sync, for compute capability 8.0 and later: the host half of forward.cuh.
#pragma once
#include "cuda/attention/host.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/host/kernels.hpp"
#include "cuda/sm80/forward/config.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::sm80 {

// The config of a problem, by the table: the first row that computes it and fits `shared_bytes` a CTA.
Selected<ForwardConfig> select_config(const Problem& problem, int shared_bytes);
// The same on a device, which must be of compute capability 8.0 or later.
Selected<ForwardConfig> config_on(const cuda::DeviceFacts& device, const Problem& problem);
// arch: "sm_80"; mods: cuda::mods_source of the problem.
cuda::KernelProgram program_of(const ForwardFeatures& features, const ForwardConfig& config, const std::string& arch,
                               const std::string& mods = {});
Decision plan_forward(const Request& request, const cuda::Part& part);
extern const Implementation kForwardImplementation;

}  // namespace onepass::sm80
