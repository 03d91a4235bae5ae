// Included with EMULATED_TYPE, EMULATED_NAMESPACE and EMULATED_FUNCTION set.
#include "on_host/bias_text.hpp"

#include <cstring>

#include "on_host/warps.hpp"

#define onepass EMULATED_NAMESPACE
#include "cuda/attention/forward.hpp"
namespace onepass {
constexpr ForwardFeatures features = {64,    64,    Type::bf16, Type::bf16, false,               false, false, false,
                                      false, false, false,      false,      Type::EMULATED_TYPE, false, false};
}
#define ldmatrix4 ldmatrix4_of_the_device
#define load_pair load_pair_of_the_device
#include "cuda/device/mma.cuh"
#undef ldmatrix4
#undef load_pair
namespace onepass {
inline unsigned char shared[1 << 17];
inline void ldmatrix4(u32* r, u32 from) {  // register i: matrix i, whose rows lanes 8 i to 8 i + 7 point to
  const auto all = warps::share(from);
  for (unsigned i = 0; i < 4; ++i)
    std::memcpy(r + i, shared + all[8 * i + threadIdx.x % 32 / 4] + 4 * (threadIdx.x % 4), 4);
}
inline void load_pair(float (&x)[2], u32 from) { std::memcpy(x, shared + from, 8); }
}  // namespace onepass
#include "cuda/sm90/forward_config.hpp"
namespace onepass::sm90 {
constexpr ForwardConfig config = {2, 128, 2, 1, false, false, false, 1, 24, 240};
}
#include "cuda/sm90/bias_tile.cuh"
#undef onepass
#undef asm
#undef volatile

namespace warps {

std::vector<float> EMULATED_FUNCTION(const Values& value) {
  using namespace EMULATED_NAMESPACE;
  constexpr int kSize = Type::EMULATED_TYPE == Type::f32 ? 4 : 2, kColumns = 128 / kSize;
  for (int row = 0; row < 128; ++row) {
    for (int key = 0; key < 128; ++key) {  // as TMA writes with a 128-byte swizzle
      const int byte = key % kColumns * kSize, chunk = (byte / 16) ^ (row % 8);
      const float x = value(row, key);
      const auto bits = std::bit_cast<std::uint32_t>(x);
      const std::uint32_t stored = kSize == 4 ? bits : bits >> 16;
      std::memcpy(shared + (key / kColumns * 128 + row) * 128 + chunk * 16 + byte % 16, &stored, kSize);
    }
  }
  std::vector<float> out(128 * 128);
  for (unsigned warp = 0; warp < 8; ++warp) {
    run_block(32, [&] {
      const sm90::BiasTile<features.bias> tile{0, warp * 16};
      for (int j = 0; j < 64; j += 8) {
        float bias[8];
        tile(j, bias);
        for (int i = 0; i < 8; ++i) {
          const int row = static_cast<int>(warp * 16 + threadIdx.x / 4) + 8 * (i >> 1 & 1);
          out[static_cast<std::size_t>(row * 128 + column_of(j + i, threadIdx.x % 4))] = bias[i];
        }
      }
    });
  }
  return out;
}

}  // namespace warps
