// The appending kernel's device source, compiled for some of its configs. Structures of the library travel as pointers:
// each text has its own, of the same layout.
#pragma once

namespace warps {

struct AppendSource {
  const void* config;                                // AppendConfig
  void (*run)(const void* params, unsigned blocks);  // AppendParams
};
extern const AppendSource append_f32_halves, append_f32_interleaved_packed_paged, append_bf16_halves_packed_paged,
    append_f16_interleaved_packed, append_bf16_interleaved_paged, append_bf16_one_by_one, append_f16_one_by_one,
    append_f32_one_by_one, append_f16_copied, append_bf16_fp8, append_f16_fp8_one_by_one, append_bf16_slots,
    append_f16_slots_copied, append_f16_slots_fp8, append_f32_slots_one_by_one, append_f32_f16_halves_paged;

}  // namespace warps
