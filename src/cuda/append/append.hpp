// The config and the parameters of the appending kernel. One definition for the host and the device half.
#pragma once
#include "cuda/device/config.hpp"

namespace onepass {

struct AppendConfig {
  ScalarType data, cache, table;           // of what is new and q; of k and v; of cos and sin, none: nothing is rotated
  bool interleaved, packed, paged, slots;  // slots: slot_mapping in place of all lengths and tables
  int at_once;  // elements that a thread reads or writes side by side: 8 where addresses and strides allow, else 1

  ONEPASS_FIELDS(AppendConfig, data, cache, table, interleaved, packed, paged, slots, at_once)
  ONEPASS_HD constexpr bool rotates() const { return table != ScalarType::none; }
  // Pairs that a thread rotates: halves are read apart, interleaved pairs side by side.
  ONEPASS_HD constexpr int pairs() const { return !interleaved ? at_once : at_once > 1 ? at_once / 2 : 1; }
};

struct AppendParams {
  const void *k_new, *v_new, *q, *cos, *sin;
  void *k, *v, *q_out;
  // In elements: batch (0 if packed), head, token. Of k and v: batch or page, head, token of it.
  long long k_new_stride[3], v_new_stride[3], q_stride[3], q_out_stride[3], k_stride[3], v_stride[3];
  long long cos_stride[2], sin_stride[2];
  const int *seqused, *page_table, *cu;
  long long seqused_stride, table_stride[2], cu_stride;
  const void *slots, *positions_of;  // [tokens], int64 or int32
  long long slot_stride, position_stride;
  bool wide_slots, wide_positions;  // int64
  // Scales of an e4m3 cache, null: 1; [batch, heads_kv, blocks of 128 keys].
  const float *k_descale, *v_descale;
  long long k_descale_stride[3], v_descale_stride[3];
  int batch, seq_new;  // seq_new: unless packed
  int heads_kv, rotary_dim, page_size, pages;
  long long capacity, positions;
  // A token's work, a thread each: `rotated` parts with pairs and `copied` parts without in each row of k and q, then
  // `values` parts in each row of v; of all its rows `items`. all_items: of all tokens.
  int rotated, copied, values, items;
  long long all_items;
};

constexpr int kAppendThreads = 256;
constexpr int kAppendAtOnce = 8;  // 16 bytes of 16-bit elements, two times 16 of fp32

}  // namespace onepass
