// Block masks that are built on a device: the states of the tiles of a mask_mod.
#pragma once
#include <string>
#include <vector>

#include "cuda/block_mask/block_mask.hpp"
#include "cuda/compile/program.hpp"
#include "expression/block_mask/block_mask.hpp"
#include "problem/problem.hpp"

namespace onepass::cuda {

// The kernels of a block mask of the problem's mask_mod: of its buffers, if there are any, and of its tiles.
std::vector<KernelProgram> block_mask_programs(const Problem& problem, const std::string& arch);

struct BlockMaskCall {
  const std::vector<NamedTensor>& buffers;
  const BlockMaskShape& shape;
  const Tensor& states;
  bool exact;
};
// The memory that bounds of the buffers take.
std::size_t level_bytes(const std::vector<NamedTensor>& buffers, const BlockMaskShape& shape);
// The parameters of the launches; `memory` has level_bytes() bytes. The part and the units of levels are those of
// launch_levels().
LevelParams level_params(const BlockMaskCall& call, void* memory);
BlockMaskParams block_mask_params(const BlockMaskCall& call, const LevelParams& levels);
// start(params, CTAs) for each launch of the levels that has units.
template <class Start>
void launch_levels(const BlockMaskCall& call, LevelParams& params, const Start& start) {
  for (const LevelPart part : {LevelPart::groups, LevelPart::levels, LevelPart::all}) {
    params.part = part, params.units = 0;
    for (std::size_t i = 0; i < call.buffers.size(); ++i) params.units += units_of(params.buffers[i], part);
    if (params.units > 0) start(params);
  }
}

// Puts the work on the stream. The tensors are checked. memory: level_bytes() bytes.
void block_mask_states(const BlockMaskText& mask, const BlockMaskCall& call, void* memory, void* stream);

}  // namespace onepass::cuda
