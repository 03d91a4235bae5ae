// Where the keys and values of a tile's head lie. Every load of K and V asks here.
#pragma once
#include "cuda/attention/forward.hpp"
#include "cuda/attention/tile_scheduler.cuh"

namespace onepass {

// From a key's number within its sequence to a place in the tensors: as coordinates of a tensor map or as an offset.
// Contiguous tensors have a batch dimension; packed ones have none, and a sequence begins at `first_token`; paged ones
// have pages in its stead, which a table names. A run of keys that no page ends in needs one look-up.
struct KeyValueView {
  i32 batch, head, first_token;  // batch: of the tensors; of paged ones the row of the table

  static DEV KeyValueView of(const ForwardParams& p, const WorkTile& tile) {
    return of_head(tile, tile.head / p.heads_per_kv);
  }
  static DEV KeyValueView of_head(const WorkTile& tile, i32 head) {  // of K and V
    return {features.cache() ? tile.batch : tile.map_batch, head, tile.k_begin};
  }

  struct Place {
    i32 batch, token;  // batch: or page; -1: the table's entry is out of range, and nothing is to be read
    DEV bool exists() const { return !features.paged || batch >= 0; }
  };
  DEV Place place(const ForwardParams& p, i32 key) const { return checked(p, entry(p, key)); }
  // The same in two steps: the raw entry, without waiting for the load, and then -1 for a page that does not exist.
  DEV Place entry(const ForwardParams& p, i32 key) const {
    if constexpr (features.paged) {
      const i32 at = page_of(p, key);
      return {p.page_table[batch * p.table_stride[0] + at * p.table_stride[1]], key - at * p.page_size};
    }
    return {batch, first_token + key};
  }
  static DEV Place checked(const ForwardParams& p, const Place& at) {
    if constexpr (!features.paged) return at;
    return {static_cast<u32>(at.batch) < static_cast<u32>(p.pages) ? at.batch : -1, at.token};
  }
  // The place in a paged cache of a key whose raw entry is known.
  static DEV Place in_page(const ForwardParams& p, i32 entry, i32 key) {
    return checked(p, {entry, key - page_of(p, key) * p.page_size});
  }
  static DEV i32 page_of(const ForwardParams& p, i32 key) {  // within its sequence
    return p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
  }
  // In elements; stride: batch, head, token.
  DEV i64 offset(const long long (&stride)[3], const Place& at) const {
    return at.batch * stride[0] + head * stride[1] + static_cast<i64>(at.token) * stride[2];
  }
};

}  // namespace onepass
