// The host half of mask_bits.cuh.
#pragma once
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mask_bits.hpp"
#include "problem/implementation.hpp"

namespace onepass::cuda {

KernelProgram mask_program(const std::string& arch);
// The size of the problem's packed mask; 0 if it has no mask. fragments: includes them (tiles of 64 rows x 32 keys).
std::size_t mask_bytes(const Problem& problem, const TileShape& tile, bool fragments = false);
// Where the packed mask will be in `workspace` (mask_bytes bytes), and the packing's parameters.
struct MaskPlan {
  MaskPackParams pack;
  MaskBits bits;
};
MaskPlan plan_mask(const Problem& problem, const void* mask, const TileShape& tile, void* workspace,
                   bool fragments = false);
const Kernel& load_mask_kernel(const DeviceFacts& device, Stream stream);
// Launches the packing into `workspace` (mask_bytes bytes) and says where everything will be.
MaskPlan pack_mask(const Problem& problem, const Tensors& arguments, const TileShape& tile, void* workspace,
                   const DeviceFacts& device, Stream stream, bool fragments = false);

}  // namespace onepass::cuda
