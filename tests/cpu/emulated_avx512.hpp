// Loops under the names of AVX-512's instructions: with emulated tiles, the AMX kernels' own source runs on any CPU.
// Included before the kernels, in a translation unit without other users of the instructions.
#pragma once
#include "cpu/avx512_loops.hpp"

#define ONEPASS_EMULATED_AVX512

// Macros of some compilers.
#undef _mm512_reduce_ps
#undef _mm512_getmant_ps
#undef _mm512_cmp_ps_mask
#undef _mm512_cmple_epi32_mask
#undef _mm512_mask_cmpgt_epi32_mask
#undef _mm512_cmpeq_epi16_mask
#undef _mm512_getexp_ps
#undef _mm512_mask_blend_epi16
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#undef _mm512_shuffle_i32x4

#define __m512 avx512::V512
#define __m512i avx512::V512
#define __m256i avx512::V256
#define _mm512_load_ps avx512::load<64>
#define _mm512_loadu_ps avx512::load<64>
#define _mm512_load_si512 avx512::load<64>
#define _mm512_store_ps avx512::store<64>
#define _mm512_store_si512 avx512::store<64>
#define _mm512_storeu_si512 avx512::store<64>
#define _mm512_maskz_loadu_ps avx512::load_some<std::uint32_t, 64>
#define _mm512_maskz_loadu_epi16 avx512::load_some<std::uint16_t, 64>
#define _mm256_maskz_loadu_epi16 avx512::load_some<std::uint16_t, 32>
#define _mm_maskz_loadu_epi8 avx512::load_some<std::uint8_t, 16>
#define _mm512_mask_storeu_ps avx512::store_some<std::uint32_t, 64>
#define _mm256_mask_storeu_epi16 avx512::store_some<std::uint16_t, 32>
#define _mm512_set1_ps avx512::set_float
#define _mm512_set1_epi32 avx512::set_each<std::uint32_t>
#define _mm512_set1_epi16 avx512::set_each<std::uint16_t>
#define _mm512_setzero_si512 avx512::zero
#define _mm512_castps_si512 avx512::same
#define _mm512_castsi512_ps avx512::same
#define _mm512_add_ps avx512::add
#define _mm512_sub_ps avx512::sub
#define _mm512_mul_ps avx512::mul
#define _mm512_div_ps avx512::div
#define _mm512_max_ps avx512::max
#define _mm512_abs_ps avx512::abs
#define _mm512_fmadd_ps avx512::mul_add
#define _mm512_fnmadd_ps avx512::neg_mul_add
#define _mm512_reduce_ps avx512::fraction
#define _mm512_scalef_ps avx512::scale_by_power
#define _mm512_getexp_ps avx512::exponent
#define _mm512_getmant_ps avx512::mantissa
#define _mm512_cmp_ps_mask avx512::compare
#define _mm512_and_ps avx512::bits_and
#define _mm512_or_ps avx512::bits_or
#define _mm512_and_si512 avx512::bits_and
#define _mm512_or_si512 avx512::bits_or
#define _mm512_xor_si512 avx512::bits_xor
#define _mm512_add_epi32 avx512::add_integers
#define _mm512_sub_epi32 avx512::sub_integers
#define _mm512_slli_epi32 avx512::shift_left
#define _mm512_srli_epi32 avx512::shift_right
#define _mm512_cmple_epi32_mask avx512::at_most
#define _mm512_mask_cmpgt_epi32_mask avx512::above
#define _mm512_cmpeq_epi16_mask avx512::equal<std::uint16_t>
#define _mm512_test_epi32_mask avx512::common
#define _mm512_mask_mov_ps avx512::replace<std::uint32_t>
#define _mm512_mask_mov_epi32 avx512::replace<std::uint32_t>
#define _mm512_maskz_mov_epi16 avx512::keep<std::uint16_t>
#define _mm512_maskz_mov_epi32 avx512::keep<std::uint32_t>
#define _mm512_mask_blend_epi16 avx512::blend<std::uint16_t>
#define _mm512_cvtepi32_ps avx512::widen<float, std::int32_t, 64>
#define _mm512_cvtepu16_epi32 avx512::widen<std::uint32_t, std::uint16_t, 32>
#define _mm512_cvtepu8_epi32 avx512::widen<std::uint32_t, std::uint8_t, 16>
#define _mm512_cvtepi32_epi16 avx512::narrow
#define _mm512_cvtph_ps avx512::from_half
#define _mm512_unpacklo_epi32 avx512::unpack<std::uint32_t, false>
#define _mm512_unpackhi_epi32 avx512::unpack<std::uint32_t, true>
#define _mm512_unpacklo_epi64 avx512::unpack<std::uint64_t, false>
#define _mm512_unpackhi_epi64 avx512::unpack<std::uint64_t, true>
#define _mm512_shuffle_i32x4 avx512::shuffle_quarters
