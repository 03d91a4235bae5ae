// Rows in memory to tiles. Everything beyond the last key or dim becomes 0, so the tile loops know no tails.
namespace onepass::cpu::amx {
namespace {

// Keys are the A operand of S^T = K Q^T: [keys / 32][dim / 32][32 keys][32 dims], two tiles in a row.
void pack_keys(const PackTask& t) {
  std::uint16_t* to = t.to;
  for (std::int64_t key = 0; key < t.keys; key += kGroup) {
    for (int d = 0; d < t.dim; d += 32) {
      const __mmask32 dims = first_bits(t.dim - d);
      for (std::int64_t j = key; j < key + kGroup; ++j, to += 32) {
        const __m512i row =
            j < t.keys ? _mm512_maskz_loadu_epi16(dims, t.from + j * t.stride + d) : _mm512_setzero_si512();
        _mm512_store_si512(to, row);
      }
    }
  }
}

AMX_INLINE __m512i sixteen_values(const PackTask& t, std::int64_t key, int dim, __mmask16 dims) {
  if (key >= t.keys) return _mm512_setzero_si512();
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(dims, t.from + key * t.stride + dim));
}

// Values are the A operand of O^T = V^T P^T: [keys / 32][dim / 16][16 dims][32 keys], made even in dim / 16.
// Neighbouring keys are joined to pairs first; a 16 x 16 transpose of dwords does the rest. A vector then holds 32 keys
// of a dim, and what is not finite among them is a word of flags.
void pack_values(const PackTask& t) {
  std::uint16_t* to = t.to;
  const int tiles = static_cast<int>(round_up(t.dim, 32)) / 16;
  for (std::int64_t key = 0; key < t.keys; key += kGroup) {
    std::uint32_t* const flags = t.flags ? t.flags + key / kGroup * flag_words(tiles * 16) : nullptr;
    std::uint32_t any = 0;
    for (int tile = 0; tile < tiles; ++tile, to += 512) {
      const __mmask16 dims = static_cast<__mmask16>(first_bits(t.dim - tile * 16));
      __m512i pairs[16];
      for (int i = 0; i < 16; ++i) {
        pairs[i] = _mm512_or_si512(sixteen_values(t, key + 2 * i, tile * 16, dims),
                                   _mm512_slli_epi32(sixteen_values(t, key + 2 * i + 1, tile * 16, dims), 16));
      }
      transpose(pairs);
      for (int i = 0; i < 16; ++i) {
        __mmask32 bad = 0;
        if (flags) {
          bad = not_finite(pairs[i]);
          any |= flags[1 + tile * 16 + i] = bad;
        }
        _mm512_store_si512(to + i * 32, _mm512_maskz_mov_epi16(~bad, pairs[i]));
      }
    }
    if (flags) flags[0] = any;
  }
}

// Queries are the B operand: [2][dim / 2][16 rows] pairs of dims.
AMX_INLINE void pack_queries(const RowBlock& block, int dim, bool negate, std::uint32_t* to) {
  const __m512i flip = _mm512_set1_epi16(static_cast<short>(negate ? 0x8000 : 0));
  const std::int64_t other_half = round_up(dim, 32) / 2 * kLanes;
  for (int d = 0; d < dim; d += 32, to += 16 * kLanes) {
    const __mmask32 dims = first_bits(dim - d);
    for (int half = 0; half < 2; ++half) {
      __m512i pairs[16];
      for (int i = 0; i < 16; ++i) {
        const std::uint16_t* q = block.q[half * 16 + i];
        pairs[i] = q ? _mm512_xor_si512(_mm512_maskz_loadu_epi16(dims, q + d), flip) : _mm512_setzero_si512();
      }
      transpose(pairs);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(to + half * other_half + i * kLanes, pairs[i]);
    }
  }
}

}  // namespace
}  // namespace onepass::cpu::amx
