// Included with EMULATED_TYPE, EMULATED_COPY_BYTES and EMULATED_NAME set.
#include "on_host/copy_source.hpp"

#include <array>
#include <utility>

#include "on_host/intrinsics.hpp"

#define EMULATED_PASTED(a, b) a##b
#define EMULATED_JOINED(a, b) EMULATED_PASTED(a, b)
#define onepass EMULATED_JOINED(emulated_, EMULATED_NAME)
#include "cuda/sm80/forward/config.hpp"
namespace onepass {
constexpr ForwardFeatures forward_features = {
    .attention = {.dim_qk = 64, .dim_v = 64, .input = ScalarType::EMULATED_TYPE}, .output = ScalarType::EMULATED_TYPE};
constexpr AttentionFeatures features = forward_features.attention;
namespace mma {
constexpr sm80::ForwardConfig config = {
    .warps = 4, .row_tiles = 1, .share = 1, .block_n = 48, .stages = 1, .blocks = 1, .copy_bytes = EMULATED_COPY_BYTES};
}
}  // namespace onepass
#include "cuda/sm80/forward/tile.cuh"

#include "cuda/mma/copy.cuh"

namespace onepass::sm80 {

constexpr u32 kBase = warps::kSharedBytes - 16;  // where the first token's address lies
constexpr i32 pitch_of(i32 dim) { return round_up(dim * kElementBytes, 128); }

struct Call {
  long long token_stride;
  i32 tokens, first;
};
template <i32 dim>
void copy(const Call& call) {  // by one thread
  TileCopy<kBlockN, dim, pitch_of(dim)>{kBase, call.token_stride, call.tokens}(0, call.first);
}
template <i32... before>
constexpr auto table(std::integer_sequence<i32, before...>) {
  return std::array<void (*)(const Call&), sizeof...(before)>{&copy<before + 1>...};
}
constexpr auto kCopies = table(std::make_integer_sequence<i32, 512>{});

}  // namespace onepass::sm80

namespace warps {

constexpr int kCopyBytes = EMULATED_COPY_BYTES;
const CopySource EMULATED_JOINED(copy_, EMULATED_NAME) = {
    onepass::sm80::kElementBytes,
    kCopyBytes,
    onepass::sm80::kBlockN,
    [](int dim, const char* tensor, long long token_stride, int tokens, int first) {
      using namespace onepass;
      const auto copy = sm80::kCopies[static_cast<std::size_t>(dim) - 1];
      run_block(sm80::kThreads, [&] {
        if (threadIdx.x == 0) store_address(sm80::kBase, tensor);
        __syncthreads();
        copy({token_stride, tokens, first});
        copies_commit();
        copies_wait<0>();
      });
    },
    [](int dim) { return onepass::sm80::kBlockN * onepass::sm80::pitch_of(dim); },
    [](int dim, int row, int chunk) {
      return static_cast<int>(onepass::sm80::swizzled(static_cast<unsigned>(row), static_cast<unsigned>(chunk),
                                                      static_cast<unsigned>(onepass::sm80::pitch_of(dim))));
    }};

}  // namespace warps
