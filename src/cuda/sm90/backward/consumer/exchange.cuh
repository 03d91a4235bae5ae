// The data that the scores' warpgroup of split.cuh hands to the gradients' warpgroup.
#pragma once
#include "cuda/sm90/backward/consumer/weights.cuh"

namespace onepass::sm90 {

// The words that a lane of the scores' warpgroup hands to the same lane of the other, 16 bytes at a time: pairs of
// 16-bit numbers. Weights are at most 1: as fp16 times 2^12 they keep eleven bits down to 2^-26, whatever the inputs'
// type, so that dS is rounded once. (In bf16 the errors of dq and dk were a fifth larger at d256.) With other features
// there are no registers for that.
using Weight = ElementOf<kPlainScores ? ScalarType::f16 : features.input>::Format;
constexpr float kWeightScale = kPlainScores ? 4096.0f : 1.0f;

struct Exchange {
  u32 at;  // of the warp's part
  u32 lane;
  DEV u32 place(u32 i) const { return at + (i * 32 + lane) * 16; }
  template <class Get>
  DEV void put(u32 first, const Get& get) const {
#pragma unroll
    for (u32 i = 0; i < kScores / 8; ++i)
      store_four(place(first + i), get(8 * i), get(8 * i + 2), get(8 * i + 4), get(8 * i + 6));
  }
  template <class Format, class Set>
  DEV void take(u32 first, const Set& set) const {
#pragma unroll
    for (u32 i = 0; i < kScores / 8; ++i) {
      u32 x[4];
      load_four(place(first + i), x[0], x[1], x[2], x[3]);
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        set(8 * i + 2 * e, Format::unpack(static_cast<u16>(x[e])));
        set(8 * i + 2 * e + 1, Format::unpack(static_cast<u16>(x[e] >> 16)));
      }
    }
  }
};

}  // namespace onepass::sm90
