// Values that are not finite (algebra/nonfinite.hpp). Tiles multiply a hidden key's weight of 0 with its value, and 0
// times infinity is NaN. So packed values have zeros in their place, and flags bring them to the rows that see their
// keys. An element of O that has lost something is NaN, which may stand for an infinity.
namespace onepass::cpu::amx {
namespace {

// A row sees the keys whose scores are not -inf. A row's bit in lost[dim] is set if it sees a key with a flag there: 8
// tests for a dim and a unit of 128 keys, beside the unit's 64 to 128 cycles of tiles for it. s: scores; flags: of the
// unit's first group.
__attribute__((noinline)) void add_lost(const std::uint32_t* flags, int keys, std::int64_t depth_v, const float* s,
                                        std::uint32_t* lost) {
  const int groups = keys / kGroup;
  __m512i visible[2][kKeys / kGroup];
  for (int half = 0; half < 2; ++half) {
    for (int g = 0; g < groups; ++g) {
      __m512i seen = _mm512_setzero_si512();
      for (std::uint32_t left = flags[g * flag_words(depth_v)]; left != 0; left &= left - 1) {
        const int key = g * kGroup + __builtin_ctz(left);
        const __mmask16 hidden = equal(load(s + half * kScoreHalf + key * kLanes), minus_infinity());
        const __m512i bit = _mm512_set1_epi32(static_cast<int>(left & -left));
        seen = _mm512_or_si512(seen, _mm512_maskz_mov_epi32(static_cast<__mmask16>(~hidden), bit));
      }
      visible[half][g] = seen;
    }
  }
  for (std::int64_t d = 0; d < depth_v; ++d) {
    if (lost[d] == 0xffffffffu) continue;
    for (int g = 0; g < groups; ++g) {
      const std::uint32_t word = flags[g * flag_words(depth_v) + 1 + d];
      if (word == 0) continue;
      const __m512i all = _mm512_set1_epi32(static_cast<int>(word));
      const std::uint32_t first = _mm512_test_epi32_mask(visible[0][g], all);
      lost[d] |= first | std::uint32_t{_mm512_test_epi32_mask(visible[1][g], all)} << kLanes;
    }
  }
}

}  // namespace
}  // namespace onepass::cpu::amx
