// The parts of an append in a problem, in a call's tensors and in a layout.
#pragma once
#include <cstdint>

#include "onepass/tensor.hpp"

namespace onepass {

// The first rotary_dim columns of k_new, and of q if it is there, are rotated by cos and sin of `positions` rows.
struct AppendFields {
  // slots: slot_mapping says where each token goes, and batch is 1; else cache_seqlens does.
  bool slots = false;
  DType slot_dtype = DType::i64, position_dtype = DType::i32;  // of slot_mapping and positions: int32 or int64
  bool rotary = false, interleaved = false, with_q = false;
  std::int64_t rotary_dim = 0, positions = 0;
  DType table_dtype = DType::f32;  // of cos and sin
  friend bool operator==(const AppendFields&, const AppendFields&) = default;
};
// Beside q, cu_seqlens_q, page_table and the scales of k and v: new tokens, the cache, its lengths before the call or
// the slots of the tokens and their positions, and the rotation.
struct AppendTensorFields {
  ConstTensor k_new{}, v_new{};
  Tensor k_cache{}, v_cache{};
  ConstTensor cache_seqlens{}, slot_mapping{}, positions{};
  ConstTensor cos{}, sin{};
  Tensor q_out{};
};
struct AppendLayout {
  Dims k_new{}, v_new{}, q_out{};    // as q
  Dims k_cache{}, v_cache{};         // as k and v of a cache
  Dims cache_seqlens{};              // [batch]
  Dims slot_mapping{}, positions{};  // [tokens]
  Dims cos{}, sin{};                 // [positions, pairs of columns]
  friend bool operator==(const AppendLayout&, const AppendLayout&) = default;
};

}  // namespace onepass
