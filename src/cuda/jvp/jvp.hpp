// Forward mode on CUDA: cuda.jvp on tensor cores, for compute capability 8.0 and later, and cuda.jvp_plain for head
// dims that it does not support: the host half of jvp.cuh and plain.cuh.
#pragma once
#include <string>

#include "cuda/attention/host.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/jvp/config.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda::jvp {

JvpFeatures features_of(const Problem& problem);
// The config of a problem, by the table: the first row that computes it and fits `shared_bytes` a CTA.
Selected<JvpConfig> select_config(const Problem& problem, int shared_bytes);
cuda::TileShape tile_shape_of(const JvpConfig& config);
inline constexpr cuda::TileShape kPlainTile{kJvpPlainRows, 32, 0};

// The text in front of a kernel's source: its features as constants.
std::string features_source(const JvpFeatures& features);
// arch: "sm_80"; mods: cuda::mods_source of the problem, differentiated.
cuda::KernelProgram program_of(const JvpFeatures& features, const JvpConfig& config, const std::string& arch,
                               const std::string& mods = {});
cuda::KernelProgram plain_program(const JvpFeatures& features, const std::string& arch, const std::string& mods = {});

// A launch's parameters but for what a call brings, and a call's addresses.
JvpParams decided_jvp(const Problem& problem, const cuda::TileShape& tile, int l2_bytes);
void bind_jvp(JvpParams& params, const Tensors& tensors, void* workspace);

extern const Implementation kImplementation, kPlainImplementation;

}  // namespace onepass::cuda::jvp
