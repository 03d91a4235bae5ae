// Where the keys and values of a tile's head lie. Every load of K and V asks here.
#pragma once
#include "cuda/attention/tile_scheduler.cuh"

namespace onepass {

// From a key's number within its sequence to a token of the tensors: as a coordinate of a tensor map or as an offset.
// Contiguous tensors have a batch dimension; packed ones have none, and a sequence begins at `first_token`.
// Paged tensors will be a third case, and only here: token() and offset() look the key's page up in a table. A block
// of keys then needs one look-up if pages hold whole blocks, so callers ask once for each block.
struct KeyValueView {
  i32 batch, head, first_token;

  static DEV KeyValueView of(const AttentionParams& p, const WorkTile& tile) {
    return {tile.map_batch, tile.head / p.heads_per_kv, tile.k_begin};
  }
  DEV i32 token(i32 key) const { return first_token + key; }
  // In elements; stride: batch, head, token.
  DEV i64 offset(const long long (&stride)[3], i32 key) const {
    return batch * stride[0] + head * stride[1] + static_cast<i64>(token(key)) * stride[2];
  }
};

}  // namespace onepass
