// V of e4m3 on its way to P V: products of 8 bits want both operands K-major, so three warps turn V [keys][columns]
// into V^T [columns][keys] while the consumers are at earlier blocks.
//
// The keys of every 32 are permuted on the way, so that a lane's scores, packed four to a register as they come, are
// the A fragment of P V: no shuffle is needed on P. A unit is 32 keys by 16 columns. ldmatrix.trans of 16-bit pairs
// gives lane (c, t) = (lane / 4, lane % 4) the bytes (key, column) = (2t, 2c), (2t, 2c + 1), (2t + 1, 2c), (2t + 1, 2c
// + 1) of each 8 keys. The bytes of one column from the words of keys 0-7 and 8-15 are keys 2t, 2t + 1, 8 + 2t, 9 + 2t:
// those that lane t of a quad holds of S; they go to slots 4t to 4t + 3. A lane's two columns swap places in the upper
// half of the warp, so that the eight rows of each stored matrix lie in distinct banks.
#pragma once
#include "cuda/device/tma.cuh"
#include "cuda/mma/mma.cuh"

#include "cuda/sm90/forward/tile.cuh"

namespace onepass::sm90 {

constexpr u32 kUnitKeys = 32, kUnitColumns = 16;

DEV void transpose_block(u32 incoming, u32 vt, u32 warp) {
  constexpr u32 kWidth = transposed_width(config.block_n), kUnits = kBlockN / kUnitKeys;
  constexpr u32 kEven = 0x6420, kOdd = 0x7531, kOfRow = kWidth / kUnitKeys;
  constexpr u32 kAtOnce = config.producer_registers < 40 && kUnits == 4 ? 2 : kUnits;  // 32 registers hold 3
  const u32 lane = threadIdx.x % 32, i = lane % 8, matrix = lane / 8;
  const u32 first = lane < 16 ? kEven : kOdd, second = first ^ kEven ^ kOdd;
  const u32 from = swizzled(incoming, lane, 0),
            to = narrow_swizzled<kWidth>(vt, 2 * i + (i / 4 ^ matrix % 2), matrix / 2);
#pragma unroll 1
  for (u32 c = warp; c < kOutN / kUnitColumns; c += kHelpers) {
    const u32 source = (from ^ c % 8 * 16) + c / 8 * kBlockN * kBlockColumnBytes,
              target = to + c * kUnitColumns * kWidth;
#pragma unroll 1
    for (u32 g = 0; g < kUnits; g += kAtOnce) {
      u32 r[kAtOnce][4];
#pragma unroll
      for (u32 i = 0; i < kAtOnce; ++i) ldmatrix4_transposed(r[i], source + (g + i) * kUnitKeys * kBlockColumnBytes);
#pragma unroll
      for (u32 i = 0; i < kAtOnce; ++i) {  // chunks 2 u and 2 u + 1 of a row
        const u32 u = g + i;
        stmatrix4((target ^ u % kOfRow * 32) + u / kOfRow * kOutN * kWidth, choose_bytes(r[i][0], r[i][1], first),
                  choose_bytes(r[i][0], r[i][1], second), choose_bytes(r[i][2], r[i][3], first),
                  choose_bytes(r[i][2], r[i][3], second));
      }
    }
  }
}

DEV void transpose(const SharedMemory& memory, u32 warp) {
  Pipeline<kLayout.incoming> incoming = memory.incoming();
  Pipeline<kLayout.v> v = memory.v();
  const u32 lane = threadIdx.x % 32;
  for (;;) {
    incoming.wait();
    if (load_word(memory.more(incoming.state.slot)) == kNothing) return;
    v.acquire();
    transpose_block(incoming.stage(), v.stage(), warp);
    async_proxy_fence();
    __syncwarp();
    incoming.release(lane == 0);
    warp_arrive(v.full(), lane == 0);
    v.advance();
  }
}

}  // namespace onepass::sm90
