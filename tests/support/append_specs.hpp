// Appends for every backend: all styles and layouts, and numbers that only a device meets.
#pragma once
#include <cstdint>
#include <vector>

#include "support/append_case.hpp"

namespace onepass::check {

// Both styles of rotation, partial rotation, odd dims, packed sequences, pages, strides, sizes of 0.
inline std::vector<AppendSpec> append_specs() {
  std::vector<AppendSpec> specs;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType table : {DType::f32, dtype}) {
      for (const bool interleaved : {false, true}) {
        const AppendSpec one{.name = "one token, dense",
                             .dtype = dtype,
                             .table = table,
                             .heads_q = 4,
                             .dim_qk = 64,
                             .dim_v = 32,
                             .rotary_dim = 64,
                             .interleaved = interleaved,
                             .used = {0, 7, 38},
                             .lengths = {1, 1, 1}};
        specs.push_back(one);
        AppendSpec s = one;
        s.name = "part of a row, pages of 16, q in place", s.rotary_dim = 32, s.page_size = 16, s.capacity = 48;
        s.lengths = {5, 5, 5}, s.in_place = true;
        specs.push_back(s);
        s.name = "pages of 7, heads before tokens", s.page_size = 7, s.capacity = 49, s.heads_first = true;
        specs.push_back(s);
        s.name = "packed, pages of 1", s.page_size = 1, s.packed = true, s.lengths = {4, 0, 9}, s.left_over = 3;
        s.used = {36, 49, 0};
        specs.push_back(s);
        s.name = "packed, dense, padded rows", s.page_size = 0, s.pad = 8, s.in_place = false;
        specs.push_back(s);
        s.name = "odd dims and strides", s.dim_qk = 13, s.dim_v = 5, s.rotary_dim = 10, s.pad = 3, s.page_size = 7;
        specs.push_back(s);
        if (table == DType::f32) {
          AppendSpec fp8 = s;
          fp8.name = "fp8, odd dims", fp8.fp8 = true;
          specs.push_back(fp8);
          fp8 = one, fp8.name = "fp8, one token", fp8.fp8 = true;
          specs.push_back(fp8);
        }
        s.name = "one pair", s.dim_qk = 2, s.dim_v = 1, s.rotary_dim = 2, s.pad = 0, s.heads_q = 1, s.heads_kv = 1;
        specs.push_back(s);
      }
    }
    specs.push_back({.name = "copied", .dtype = dtype, .used = {3, 0}, .lengths = {11, 11}, .heads_first = true});
    specs.push_back(
        {.name = "no new token", .dtype = dtype, .heads_q = 2, .rotary_dim = 16, .used = {3, 40}, .lengths = {0, 0}});
    specs.push_back({.name = "no sequence", .dtype = dtype, .heads_q = 2, .rotary_dim = 16});
    specs.push_back({.name = "no heads", .dtype = dtype, .heads_kv = 0, .used = {3}, .lengths = {2}});
    specs.push_back({.name = "a long prompt",
                     .dtype = dtype,
                     .heads_q = 8,
                     .dim_qk = 128,
                     .dim_v = 128,
                     .rotary_dim = 128,
                     .used = {0, 1},
                     .lengths = {300, 170},
                     .packed = true,
                     .page_size = 16,
                     .capacity = 320});
    AppendSpec fp8 = specs.back();
    fp8.name = "fp8, a long prompt", fp8.fp8 = true, fp8.interleaved = dtype == DType::f16;
    specs.push_back(fp8);
    if (dtype == DType::f32) {
      fp8.name = "an fp16 cache, a long prompt", fp8.fp8 = false, fp8.fp16 = true, fp8.interleaved = false;
      specs.push_back(fp8);
    }
    AppendSpec slots{.name = "slots, a long prompt",
                     .dtype = dtype,
                     .table = dtype,
                     .heads_q = 8,
                     .dim_qk = 128,
                     .dim_v = 128,
                     .rotary_dim = 128,
                     .used = {0},
                     .lengths = {301},
                     .page_size = 16,
                     .capacity = 320,
                     .slots = true,
                     .joined = true};
    specs.push_back(slots);
    slots.name = "slots, interleaved, part of a row, pages of 7", slots.table = DType::f32, slots.interleaved = true;
    slots.rotary_dim = 32, slots.dim_v = 64, slots.page_size = 7, slots.capacity = 70, slots.lengths = {40};
    slots.wide_slots = false, slots.wide_positions = true, slots.in_place = true, slots.heads_first = true;
    specs.push_back(slots);
    slots.name = "slots, fp8", slots.fp8 = true, slots.joined = false;
    specs.push_back(slots);
    slots.name = "slots, fp8, odd dims", slots.dim_qk = 13, slots.dim_v = 5, slots.rotary_dim = 10, slots.pad = 3;
    specs.push_back(slots);
    slots.name = "slots, odd dims", slots.fp8 = false;
    specs.push_back(slots);
    slots = {.name = "slots, copied", .dtype = dtype, .used = {0}, .lengths = {9}, .page_size = 4, .slots = true};
    specs.push_back(slots);
    slots.name = "slots, a latent cache", slots.heads_kv = 1, slots.dim_qk = 576, slots.dim_v = 0;
    specs.push_back(slots);
    slots.name = "slots, no tokens", slots.lengths = {0};
    specs.push_back(slots);
  }
  return specs;
}

inline AppendSpec out_of_range_spec(bool odd) {
  AppendSpec spec{.name = "out of range",
                  .dtype = DType::f16,
                  .table = DType::f16,
                  .heads_q = 2,
                  .dim_qk = 32,
                  .dim_v = 8,
                  .rotary_dim = 16,
                  .used = {3, 30, 8, 0, 38, 5},
                  .lengths = {2, 5, 1, 3, 2, 4},
                  .packed = true,
                  .page_size = 10};
  if (odd) spec.dim_qk = 12, spec.dim_v = 3, spec.rotary_dim = 10;
  return spec;
}
// Slots that only a device meets: negative ones and some behind the cache, and positions before and behind the table.
inline AppendSpec slots_out_of_range_spec(bool odd) {
  AppendSpec spec{.name = "slots out of range",
                  .heads_q = 2,
                  .dim_v = 8,
                  .rotary_dim = 16,
                  .interleaved = true,
                  .used = {0},
                  .lengths = {11},
                  .page_size = 10,
                  .slots = true};
  if (odd) spec.dim_qk = 12, spec.dim_v = 3, spec.rotary_dim = 10;
  return spec;
}
// A token without a place in the cache has a rotated q. One without a row of cos and sin is left out whole.
inline void put_slots_out_of_range(AppendCase& c) {
  auto* const slots = static_cast<std::int64_t*>(const_cast<void*>(c.tensors.slot_mapping.data));
  auto* const positions = static_cast<std::int32_t*>(const_cast<void*>(c.tensors.positions.data));
  slots[0] = c.tensors.k.shape[0] * c.spec.page_size;
  slots[1] = std::int64_t{1} << 62;
  slots[3] = INT64_MIN;
  slots[4] = (std::int64_t{1} << 32) + 5;  // not slot 5
  positions[9] = static_cast<std::int32_t>(c.spec.capacity);
  positions[10] = -1;
  for (AppendCase::Memory& m : c.memory)
    if (m.input) m.before = m.bytes;
  c.spec.lengths = {9};
}
// Numbers of a case that only a device meets: what is expected then is that their tokens are left out.
inline void put_out_of_range(AppendCase& c) {
  const auto number = [&](const ConstTensor& t, int i) -> std::int32_t& {
    return static_cast<std::int32_t*>(const_cast<void*>(t.data))[i];
  };
  number(c.tensors.cache_seqlens, 0) = -1;
  number(c.tensors.cache_seqlens, 1) = 38;  // 40 keys fit: the first two tokens do
  number(c.tensors.cache_seqlens, 2) = INT32_MAX;
  number(c.tensors.page_table, 3 * 4) = -5;
  number(c.tensors.page_table, 4 * 4 + 3) = 1 << 30;
  number(c.tensors.page_table, 5 * 4) = static_cast<std::int32_t>(c.tensors.k.shape[0]);
  for (AppendCase::Memory& m : c.memory)
    if (m.input) m.before = m.bytes;
  c.spec.used = {0, 38, 0, 0, 0, 0};
  c.spec.lengths = {0, 2, 0, 0, 0, 0};
}

}  // namespace onepass::check
