// cuda.plain: attention forward for calls that no tuned kernel accepts (plain.cuh).
#pragma once
#include <string>

#include "cuda/attention/host.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/plain/config.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda {

inline constexpr TileShape kPlainTile{kPlainRows, kPlainKeys, 0};  // no warp of it remembers rows for a fallback

Selected<ForwardFeatures> select_plain(const Problem& problem);
KernelProgram plain_program(const ForwardFeatures& features, const std::string& arch, const std::string& mods = {});
// The parameters of a launch, with its EntropyParams, but for the address of `recomputed`.
PlainParams plain_params(const Problem& problem, const EntropyParams& params);
extern const Implementation kPlainImplementation;

}  // namespace onepass::cuda
