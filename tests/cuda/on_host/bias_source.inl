// Included with EMULATED_TYPE, EMULATED_NAMESPACE and EMULATED_FUNCTION set.
#include "on_host/bias_source.hpp"

#include "on_host/intrinsics.hpp"

#define onepass EMULATED_NAMESPACE
#include "cuda/attention/forward.hpp"
namespace onepass {
constexpr ForwardFeatures forward_features = {.attention = {.dim_qk = 64,
                                                            .dim_v = 64,
                                                            .input = ScalarType::bf16,
                                                            .keys = ScalarType::bf16,
                                                            .bias = ScalarType::EMULATED_TYPE},
                                              .output = ScalarType::bf16};
constexpr AttentionFeatures features = forward_features.attention;
}  // namespace onepass
#include "cuda/sm90/forward/config.hpp"
namespace onepass::sm90 {
constexpr ForwardConfig config = {
    .groups = 2, .v_groups = 1, .block_n = 128, .stages = 2, .q_stages = 1, .bias_stages = 1};
}
#include "cuda/sm90/forward/bias_tile.cuh"
#undef onepass
#undef asm
#undef volatile

namespace warps {

std::vector<float> EMULATED_FUNCTION(const Values& value) {
  using namespace EMULATED_NAMESPACE;
  constexpr int kSize = features.bias == ScalarType::f32 ? 4 : 2, kColumns = 128 / kSize;
  constexpr int kTile = 64 * 128 * kSize;  // a warpgroup's
  for (int row = 0; row < 128; ++row) {
    for (int key = 0; key < 128; ++key) {  // as TMA writes with a 128-byte swizzle
      const int byte = key % kColumns * kSize, chunk = (byte / 16) ^ (row % 8);
      const float x = value(row, key);
      const auto bits = std::bit_cast<std::uint32_t>(x);
      const std::uint32_t stored = kSize == 4 ? bits : bits >> 16;
      unsigned char* const tile = smem + row / 64 * kTile;
      std::memcpy(tile + (key / kColumns * 64 + row % 64) * 128 + chunk * 16 + byte % 16, &stored, kSize);
    }
  }
  std::vector<float> out(128 * 128);
  for (unsigned of = 0; of < 8; ++of) {
    run_block(32, [&] {
      const sm90::BiasTile<features.bias> tile{of / 4 * kTile, of % 4 * 16};
      for (int j = 0; j < 64; j += 8) {
        float bias[8];
        tile(j, bias);
        for (int i = 0; i < 8; ++i) {
          const int row = static_cast<int>(of * 16 + threadIdx.x / 4) + 8 * (i >> 1 & 1);
          out[static_cast<std::size_t>(row * 128 + column_of(j + i, threadIdx.x % 4))] = bias[i];
        }
      }
    });
  }
  return out;
}

}  // namespace warps
