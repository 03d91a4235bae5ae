// K and V of an e4m3 cache beside 16-bit q: three warps make 16-bit tiles of what the producer loads, while the
// consumers are at earlier blocks. fp16 and bf16 hold every e4m3 number, so nothing is lost; NaN stays NaN. Factors by
// block: K's goes to its scores; V is multiplied by its own against the head's largest, which loses nothing while
// factors are powers of 2 and none is below 2^-15 of the largest (fp16).
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/sm90/forward/tile.cuh"

namespace onepass::sm90 {

// kScaled: times a factor, rounded.
template <bool kScaled>
DEV u32 two_as_elements(u32 f16, float by) {
  if constexpr (!kScaled && features.input != ScalarType::bf16) return f16;
  const float first = unpack_f16(static_cast<u16>(f16)), second = unpack_f16(static_cast<u16>(f16 >> 16));
  const float a = kScaled ? first * by : first, b = kScaled ? second * by : second;
  return features.input == ScalarType::bf16 ? pack_bf16(a, b) : pack_f16(a, b);
}

// A tile of `columns` columns, as TMA writes them, [columns / 128][keys][128 bytes], to [columns / 64][keys][128
// bytes]. A warp takes eight keys by 64 columns at a time, a lane sixteen columns of a key: its reads and writes of 16
// bytes meet every bank alike, and lie at distances that are constants. Four at once: they wait for each other's
// latencies.
template <u32 columns, bool kScaled = false>
DEV void convert_tile(u32 incoming, u32 to, u32 warp, float by = 1.0f) {
  constexpr u32 kRowGroups = kBlockN / 8, kGroupBytes = 8 * kBlockColumnBytes, kAtOnce = 4;
  const u32 lane = threadIdx.x % 32, row = lane % 8, chunk = lane / 8;
#pragma unroll
  for (u32 block = 0; block < column_blocks(columns); ++block) {
    const u32 first = (warp + 2 * block) % kHelpers;  // so that all have the same number
    const u32 from = swizzled(incoming + block / 2 * kBlockN * kBlockColumnBytes + first * kGroupBytes, row,
                              chunk + block % 2 * 4),
              target = swizzled(to + block * kBlockN * kBlockColumnBytes + first * kGroupBytes, row, 2 * chunk);
#pragma unroll
    for (u32 g = 0; g < kRowGroups; g += kAtOnce * kHelpers) {
      u32 x[kAtOnce][4];
#pragma unroll
      for (u32 i = 0; i < kAtOnce; ++i) {
        const u32 at = g + i * kHelpers;
        if (at + first < kRowGroups) load_four(from + at * kGroupBytes, x[i][0], x[i][1], x[i][2], x[i][3]);
      }
#pragma unroll
      for (u32 i = 0; i < kAtOnce; ++i) {
        const u32 at = g + i * kHelpers;
        if (at + first >= kRowGroups) continue;
        u32 y[8];
#pragma unroll
        for (u32 w = 0; w < 4; ++w) {
          y[2 * w] = two_as_elements<kScaled>(unpack_pair_e4m3<0>(x[i][w]), by);
          y[2 * w + 1] = two_as_elements<kScaled>(unpack_pair_e4m3<1>(x[i][w]), by);
        }
        store_four(target + at * kGroupBytes, y[0], y[1], y[2], y[3]);
        store_four((target ^ 16) + at * kGroupBytes, y[4], y[5], y[6], y[7]);
      }
    }
  }
}

DEV void convert(const SharedMemory& memory, u32 warp) {
  Pipeline<kLayout.incoming> incoming = memory.incoming();
  Pipeline<kLayout.k> k = memory.k();
  Pipeline<kLayout.v> v = memory.v();
  constexpr bool kBlockFactors = config.block_scales;
  const bool arrives = threadIdx.x % 32 == 0;
  const auto factor = [&] { return load_one(memory.more(incoming.state.slot) + 4); };
  const auto pass_on = [&](auto& to, const auto& convert_to) {
    to.acquire();
    convert_to(to.stage());
    async_proxy_fence();
    __syncwarp();
    incoming.release(arrives);
    warp_arrive(to.full(), arrives);
    to.advance();
  };
  for (;;) {
    incoming.wait();
    switch (load_word(memory.more(incoming.state.slot))) {
      case kIncomingK:
        pass_on(k, [&](u32 to) {
          if constexpr (kBlockFactors) {
            if (warp == 0 && arrives) store_pair(memory.scales(k.state.slot), factor(), 0.0f);
          }
          convert_tile<features.dim_qk>(incoming.stage(), to, warp);
        });
        break;
      case kIncomingV:
        pass_on(v, [&](u32 to) {
          convert_tile<features.dim_v, kBlockFactors>(incoming.stage(), to, warp, kBlockFactors ? factor() : 1.0f);
        });
        break;
      default: return;
    }
  }
}

}  // namespace onepass::sm90
