// Included with EMULATED_NAME and EMULATED_PACKED set.
#include "on_host/orders_source.hpp"

#include "on_host/intrinsics.hpp"

#define EMULATED_QUOTED(a) #a
#define EMULATED_WORD(a) EMULATED_QUOTED(a)
#define EMULATED_PASTED(a, b) a##b
#define EMULATED_JOINED(a, b) EMULATED_PASTED(a, b)
#define onepass EMULATED_JOINED(emulated_order_, EMULATED_NAME)
#include "cuda/attention/backward/backward.hpp"
namespace onepass {
constexpr AttentionFeatures features = {.dim_qk = 64,
                                        .dim_v = 64,
                                        .input = ScalarType::bf16,
                                        .bounded_left = true,
                                        .bounded_right = true,
                                        .packed = EMULATED_PACKED};
}
#include "cuda/attention/tile_orders.cuh"

namespace warps {
namespace {

using namespace onepass;

BackwardParams params_of(const OrderCase& c) {
  BackwardParams p{};
  p.batch = c.batch(), p.heads = c.heads, p.heads_per_kv = c.heads_per_kv;
  p.heads_kv = c.heads / c.heads_per_kv;
  p.cu_q = c.cu_q.data(), p.cu_k = c.cu_k.data();
  p.seq_q = c.cu_q[1], p.seq_k = c.cu_k[1];
  p.left = c.left, p.right = c.right, p.align_bottom = c.align_bottom, p.offset = c.offset;
  p.m_tiles = (p.seq_q + kOrderRows - 1) / kOrderRows, p.head_group = 2;
  p.tiles = p.m_tiles * c.heads * p.batch;
  return p;
}
Block block_of(int head, int batch, int m, int n) {
  return {head, batch, m, m + kOrderRows, n * kOrderKeys, (n + 1) * kOrderKeys};
}

// Each tile of an order, by one warp; visit(tile) by its first lane.
template <class Order, class Visit>
void each_tile(const Order& order, const Visit& visit) {
  for (int number = 0; number < order.count(); ++number) {
    const auto tile = order.tile(number);
    if (!tile.exists() || tile.number != number) fail("a tile that is counted is not there");
    if (threadIdx.x == 0) visit(tile);
  }
  if (order.tile(order.count()).exists()) fail("there are more tiles than are counted");
}
std::vector<Block> blocks_of_rows(const auto& order_of, const OrderCase& c) {
  const BackwardParams p = params_of(c);
  std::vector<Block> blocks;
  run_block(32, [&] {
    each_tile(order_of(p), [&](const WorkTile& x) {
      for (int n = x.n_lo; n < x.n_hi; ++n) blocks.push_back(block_of(x.head, x.batch, x.row, n));
    });
  });
  return blocks;
}

std::vector<Block> rows_outer(const OrderCase& c) {
  return blocks_of_rows([](const ForwardParams& p) { return RowsOuter<kOrderRows, kOrderKeys>(p); }, c);
}
std::vector<Block> key_splits(const OrderCase& c) {
  return blocks_of_rows([&](const ForwardParams& p) { return KeySplits<kOrderRows, kOrderKeys>(p, c.splits); }, c);
}
std::vector<Block> keys_outer(const OrderCase& c) {
  const BackwardParams p = params_of(c);
  std::vector<Block> blocks;
  run_block(32, [&] {
    each_tile(KeysOuter<kOrderRows, kOrderKeys>(p), [&](const KeyTile& x) {
      for (int head = x.head * c.heads_per_kv; head < (x.head + 1) * c.heads_per_kv; ++head)
        for (int m = x.m_lo; m < x.m_hi; ++m)
          blocks.push_back(block_of(head, x.batch, m * kOrderRows, x.key / kOrderKeys));
    });
  });
  return blocks;
}

}  // namespace

const OrderSource EMULATED_JOINED(order_, EMULATED_NAME) = {EMULATED_WORD(EMULATED_NAME), EMULATED_PACKED, rows_outer,
                                                            keys_outer, key_splits};

}  // namespace warps
