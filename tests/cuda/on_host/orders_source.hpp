// The orders of work (src/cuda/attention/tile_scheduler.cuh, tile_orders.cuh), run on the host.
#pragma once
#include <vector>

namespace warps {

constexpr int kOrderRows = 16, kOrderKeys = 8;  // of a tile

struct OrderCase {
  int heads, heads_per_kv;
  std::vector<int> cu_q, cu_k;  // where sequences begin, and the last one ends; dense: all of one length
  int left, right;              // -1: unbounded
  bool align_bottom;
  int offset;  // unless align_bottom
  int splits;
  int batch() const { return static_cast<int>(cu_q.size()) - 1; }
};
struct Block {  // of query rows and keys of one sequence
  int head, batch, row, row_end, key, key_end;
};
struct OrderSource {
  const char* name;
  bool packed;
  // The blocks that a kernel visits, from first to last.
  std::vector<Block> (*rows_outer)(const OrderCase&);
  std::vector<Block> (*keys_outer)(const OrderCase&);
  std::vector<Block> (*key_splits)(const OrderCase&);
};
extern const OrderSource order_dense, order_packed;

}  // namespace warps
