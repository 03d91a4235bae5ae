// The host half of mask_bits.cuh.
#pragma once
#include <memory>

#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mod_bits.hpp"
#include "cuda/host/kernel_state.hpp"
#include "expression/mask_band.hpp"

namespace onepass::cuda {

KernelProgram mask_program(const std::string& arch);

// The problem as kernels compute it that read a mask_mod as a packed mask: its boolean mask spans what the mask_mod
// does, and there is no mask_mod. What the mask_mod says about the distance of q_index and k_index is its band, which
// may be all that it says. The same problem if it has no mask_mod; one that keeps it if the packed mask would be too
// large.
std::shared_ptr<const Problem> packed_problem(const std::shared_ptr<const Problem>& problem);
MaskBand mask_band(const Problem& callers);                             // none where the caller has a band of its own
const char* packing_of(const Problem& callers, const Problem& packed);  // for describe()
// The packing of a caller's mask_mod; `packed`: packed_problem() of the caller's.
KernelProgram mod_program(const Problem& callers, const std::string& arch);
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
// Strips of a mask_mod's packing (scores/mod_bits.cuh): its `units`, in place of tiles.
long long mod_units(const MaskPackParams& pack);

// A plan's packing of its mask, if it has one. callers: the problem that `problem` is the packed_problem() of.
class PackedMask {
 public:
  PackedMask(Kernels& kernels, const Problem& problem, const TileShape& tile,
             const std::shared_ptr<const Problem>& callers, bool fragments = false);
  // Launches the packing into `workspace` (mask_bytes bytes) and sets where everything will be.
  void pack(const Call& call, void* workspace, MaskBits& bits, MaskFragments* fragments = nullptr) const;

 private:
  MaskPlan plan_{};
  const PlannedKernel* kernel_ = nullptr;  // null without a mask
  bool of_mod_ = false;                    // it packs a mask_mod
};

}  // namespace onepass::cuda
