// The device source of the packed mask, run on the host. Its namespace is renamed: the library has the same names.
#include "on_host/mask_source.hpp"

#include "on_host/intrinsics.hpp"

#define onepass emulated_mask
#include "cuda/attention/forward.hpp"
namespace onepass {
constexpr AttentionFeatures features = {.dim_qk = 64,
                                        .dim_v = 64,
                                        .input = ScalarType::bf16,
                                        .bounded_left = true,
                                        .bounded_right = true,
                                        .bool_mask = true};
constexpr ForwardFeatures forward_features = {.attention = features};
}  // namespace onepass
#include "cuda/attention/scores/mask_bits.cuh"
#include "cuda/attention/scores/scores.cuh"
#undef onepass
#undef asm
#undef volatile

namespace warps {
namespace {

using namespace emulated_mask;
constexpr int kKeys = 64, kRows = 128;

ForwardParams params_of(const MaskCase& c) {
  ForwardParams p{};
  std::copy_n(static_cast<const MaskBits*>(c.bits), 1, &p.mask);
  p.batch = c.batch, p.heads = c.heads, p.heads_per_kv = 1, p.seq_q = c.seq_q, p.seq_k = c.seq_k;
  p.left = c.left, p.right = c.right, p.align_bottom = 1;
  p.m_tiles = (c.seq_q + kRows - 1) / kRows, p.head_group = 1;
  p.tiles = p.m_tiles * c.heads * c.batch;
  return p;
}

}  // namespace

void pack(const void* params) {
  const auto& p = *static_cast<const MaskPackParams*>(params);
  gridDim.x = 3;
  for (unsigned b = 0; b < gridDim.x; ++b) run_block(256, [&] { pack_mask(p); }, b);
}

Walk walk_of(const MaskCase& c, int number) {
  const ForwardParams p = params_of(c);
  Walk walk;
  run_block(32, [&] {
    const RowsOuter<kRows, kKeys> order(p);
    const WorkTile x = order.tile(number);
    if (threadIdx.x != 0) return;
    walk.row = x.row, walk.head = x.head, walk.batch = x.batch;
    for (int n = x.n_hi - 1; n >= x.n_lo; n = next_block<kKeys>(p, x, n)) {
      walk.blocks.push_back(n);
      if (n == x.n_lo) break;
    }
  });
  return walk;
}

std::vector<std::vector<char>> visible(const MaskCase& c, const Walk& walk, int first_row) {
  const ForwardParams p = params_of(c);
  std::vector<std::vector<char>> seen(walk.blocks.size(), std::vector<char>(16 * kKeys));
  run_block(32, [&] {
    WorkTile x;
    x.row = walk.row, x.head = walk.head, x.batch = x.map_batch = walk.batch, x.seq_q = c.seq_q, x.seq_k = c.seq_k;
    TileScores<true> scores{p};
    scores.open(x, first_row);
    for (std::size_t b = 0; b < walk.blocks.size(); ++b) {
      float s[kKeys / 2];
      std::fill(s, s + kKeys / 2, 1.0f);
      const i32 first = walk.blocks[b] * kKeys;
      scores.apply(s, first, scores.before<kKeys / 2>(first));
      for (int j = 0; j < kKeys / 2; ++j)
        seen[b][(threadIdx.x / 4 + 8 * (j >> 1 & 1)) * kKeys + column_of(j, threadIdx.x % 4)] = s[j] == 1.0f;
    }
  });
  return seen;
}

std::vector<char> kept(float p, unsigned long long seed, unsigned batch, unsigned head, unsigned row, unsigned key) {
  const Dropout dropout = Dropout::of(p, seed);
  std::vector<char> out(16 * kKeys);
  run_block(32, [&] {
    const u32 quad = threadIdx.x % 4;
    const DropPair drop{dropout, batch, head, row + threadIdx.x / 4, key, quad};
    for (int j = 0; j < kKeys / 2; j += 4) {
      float w[4] = {1, 1, 1, 1};
      drop(j, w);
      for (int i = 0; i < 4; ++i) out[(threadIdx.x / 4 + 8 * (i >> 1)) * kKeys + column_of(j + i, quad)] = w[i] == 1.0f;
    }
  });
  return out;
}

std::pair<float, float> tanh_of_pair(float x, float y) {
  tanh_pair(2.885390082f, x, y);
  return {x, y};
}

}  // namespace warps
