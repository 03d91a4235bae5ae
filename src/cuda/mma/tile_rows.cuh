// A warp's rows of a tile in shared memory, as multiply_rows and multiply_both take the left operand.
#pragma once
#include "cuda/device/types.cuh"

namespace onepass::mma {

// Fragments: LeftFragments of the tile's pitch.
template <class Fragments>
struct TileRows {
  u32 tile;
  DEV u32 address() const { return Fragments::address(tile); }
  DEV Fragments operator()(u32 address, i32 k) const {
    Fragments a;
    a.load(address, k);
    return a;
  }
};

}  // namespace onepass::mma
