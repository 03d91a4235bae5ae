// The additive bias of a block, staged by TMA: a fragment's values from swizzled shared memory.
#pragma once
#include "cuda/device/shared.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/mma/mma.cuh"

#include "cuda/mma/elements.cuh"
#include "cuda/sm90/forward/tile.cuh"

namespace onepass::sm90 {

template <ScalarType type>
struct BiasTile {
  u32 address;  // [columns / (64 or 32)][64 rows][128 bytes]
  u32 row;      // the warp's first of the 64

  // The bias of a lane's scores j to j + 7: 16 columns, rows g and g + 8.
  DEV void operator()(int j, float (&bias)[8]) const {
    const u32 lane = threadIdx.x % 32, column = 2 * j;
    if constexpr (type == ScalarType::f32) {
#pragma unroll
      for (u32 i = 0; i < 8; i += 2) {  // two columns of one row
        const u32 c = column + i / 4 * 8 + lane % 4 * 2, r = row + lane / 4 + i / 2 % 2 * 8;
        const u32 at = swizzled(address + c / 32 * kGroupBlockBytes, r, c % 32 / 4) + c % 4 * 4;
        float pair[2];
        load_pair(pair, at);
        bias[i] = pair[0], bias[i + 1] = pair[1];
      }
    } else {
      using Format = typename ElementOf<type>::Format;
      u32 pair[4];
      ldmatrix4(pair, swizzled(address + column / 64 * kGroupBlockBytes, row + lane % 16, column % 64 / 8 + lane / 16));
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        bias[2 * i] = Format::unpack(static_cast<u16>(pair[i]));
        bias[2 * i + 1] = Format::unpack(static_cast<u16>(pair[i] >> 16));
      }
    }
  }
};

}  // namespace onepass::sm90
