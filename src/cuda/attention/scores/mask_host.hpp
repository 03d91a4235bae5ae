// The host half of mask_bits.cuh.
#pragma once
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mask_bits.hpp"
#include "cuda/host/kernel_state.hpp"

namespace onepass::cuda {

KernelProgram mask_program(const std::string& arch);
// The size of the problem's packed mask; 0 if it has no mask. fragments: includes them (tiles of 64 rows x 32 keys).
std::size_t mask_bytes(const Problem& problem, const TileShape& tile, bool fragments = false);
// The packing's parameters, and where the packed mask will be. Addresses are those of a call, by at().
struct MaskPlan {
  MaskPackParams pack;
  MaskBits bits;
  std::int64_t fragments_at, tiles_at;  // words behind the bits; fragments_at 0: there are none
  MaskPlan at(const void* mask, void* workspace) const;
};
MaskPlan plan_mask(const Problem& problem, const TileShape& tile, bool fragments = false);

// A plan's packing of its mask, if it has one.
class PackedMask {
 public:
  PackedMask(Kernels& kernels, const Problem& problem, const TileShape& tile, bool fragments = false);
  // Launches the packing into `workspace` (mask_bytes bytes) and sets where everything will be.
  void pack(const Call& call, void* workspace, MaskBits& bits, MaskFragments* fragments = nullptr) const;

 private:
  MaskPlan plan_{};
  const PlannedKernel* kernel_ = nullptr;  // null without a mask
};

}  // namespace onepass::cuda
