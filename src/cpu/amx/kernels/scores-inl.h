// From dot products to scores, in the order of docs/reference/conventions.md, on a block S^T [2][kKeys][16 rows]. Plain
// problems skip all of it: their scale is folded into the exponential, and only units at the edge of a mask come by for
// `mask_band`.
namespace onepass::cpu::amx {
namespace {

// 16 keys of 16 rows that lie along the keys in memory, turned so that a vector holds one key. Keys from `count` on and
// rows without memory give 0.
AMX_INLINE Vec sixteen_of_row(const void* row, DType type, std::int64_t key, std::int64_t stride, int count) {
  if (!row) return set(0.0f);
  const auto* wide = static_cast<const float*>(row);
  const auto* narrow = static_cast<const std::uint16_t*>(row);
  const __mmask16 there = static_cast<__mmask16>(first_bits(count));
  if (stride == 1) {
    if (type == DType::f32) return {_mm512_maskz_loadu_ps(there, wide + key)};
    const __m256i x = _mm256_maskz_loadu_epi16(there, narrow + key);
    return {type == DType::f16 ? _mm512_cvtph_ps(x)
                               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
  }
  alignas(64) std::uint32_t bits[16] = {};
  for (int i = 0; i < count; ++i) {
    const std::int64_t at = (key + i) * stride;
    if (type == DType::f32)
      __builtin_memcpy(&bits[i], wide + at, 4);
    else
      bits[i] = narrow[at];
  }
  const __m512i x = _mm512_load_si512(bits);
  if (type == DType::f32) return {_mm512_castsi512_ps(x)};
  return {type == DType::f16 ? _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x))
                             : _mm512_castsi512_ps(_mm512_slli_epi32(x, 16))};
}

AMX_INLINE void sixteen_by_sixteen(const void* const* rows, DType type, std::int64_t key, std::int64_t stride,
                                   int count, __m512i (&by_key)[16]) {
  for (int r = 0; r < 16; ++r) by_key[r] = _mm512_castps_si512(sixteen_of_row(rows[r], type, key, stride, count).v);
  transpose(by_key);
}

AMX_INLINE __m512i mask_bytes(const std::uint8_t* row, std::int64_t key, std::int64_t stride, int count) {
  if (!row) return _mm512_setzero_si512();
  if (stride == 1) {
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(static_cast<__mmask16>(first_bits(count)), row + key));
  }
  alignas(64) std::uint32_t bits[16] = {};
  for (int i = 0; i < count; ++i) bits[i] = row[(key + i) * stride];
  return _mm512_load_si512(bits);
}

// Products of one block of keys times the factors of rows and block.
void scale_products(const RowBlock& block, float of_keys, int keys, float* s) {
  for (int half = 0; half < 2; ++half) {
    const Vec factor = Vec{_mm512_loadu_ps(block.factor + half * 16)} * set(of_keys);
    float* at = s + half * kScoreHalf;
    for (int k = 0; k < keys; ++k, at += kLanes) store(at, load(at) * factor);
  }
}

// The chain of score features and the boolean mask. `key0`: first key of s; keys beyond seq_k are left to mask_band.
// Scores stay in natural units.
void apply_chain(const ScoreParams& params, const RowBlock& block, std::int64_t key0, int keys, std::int64_t seq_k,
                 float* s) {
  const bool biased = params.bias.given(), alibi = params.slopes != nullptr, masked = params.mask.given();
  const float scale = static_cast<float>(params.scale < 0 ? -params.scale : params.scale);
  const auto chain = ScoreChain<Vec>::of(scale, params.softcap, biased, alibi);
  for (int half = 0; half < 2; ++half) {
    alignas(64) std::int32_t relative[16];
    for (int r = 0; r < 16; ++r) {
      relative[r] = static_cast<std::int32_t>(block.position[half * 16 + r] - key0);
    }
    const __m512i position = _mm512_load_si512(relative);
    const Vec slope{_mm512_loadu_ps(block.slope + half * 16)};
    for (int k = 0; k < keys; k += 16) {
      float* tile = s + half * kScoreHalf + k * kLanes;
      const std::int64_t left = seq_k - (key0 + k);
      const int count = left > 16 ? 16 : left < 0 ? 0 : static_cast<int>(left);
      __m512i bias[16], mask[16];
      if (biased) {
        sixteen_by_sixteen(block.bias + half * 16, params.bias.dtype, key0 + k, params.bias.key_stride(), count, bias);
      }
      if (masked) {
        for (int r = 0; r < 16; ++r)
          mask[r] = mask_bytes(block.mask[half * 16 + r], key0 + k, params.mask.key_stride(), count);
        transpose(mask);
      }
      for (int i = 0; i < 16; ++i) {
        const Vec product = load(tile + i * kLanes);
        const Vec distance{_mm512_cvtepi32_ps(_mm512_sub_epi32(position, _mm512_set1_epi32(k + i)))};
        Vec x = chain.transform(product, biased ? Vec{_mm512_castsi512_ps(bias[i])} : product, slope, distance);
        if (masked) x = hide_by_mask(x, mask[i]);
        store(tile + i * kLanes, x);
      }
    }
  }
}

// Scores of keys that the mask_mod hides become -inf.
void hide_by_mod(const AttendTask& t, const RowBlock& block, std::int64_t key0, int keys, float* s) {
  const auto shown = [&](int k) { return block.shown[(key0 + k - block.shown_from) / kGroup]; };
  const ExprRun<float, ScalarFunctions> mask(t.params->mods->mask, t.mod_buffers, t.scratch.mods);
  for (int k = 0, next; k < keys; k = next) {
    for (next = k + kGroup; next < keys && shown(next) == shown(k);) next += kGroup;
    for (int half = 0; shown(k) != Tile::full && half < 2; ++half) {
      float* const at = s + half * kScoreHalf + k * kLanes;
      if (shown(k) == Tile::skip) {
        for (int i = 0; i < (next - k) * kLanes; i += kLanes) store(at + i, minus_infinity());
        continue;
      }
      const auto lanes = [&](const std::uint32_t* x) { return reinterpret_cast<const std::int32_t*>(x) + half * 16; };
      mask.hide({at, kLanes, kLanes, next - k, static_cast<std::int32_t>(t.batch), key0 + k, lanes(block.head),
                 lanes(block.token)},
                -__builtin_inff());
    }
  }
}

// Scores of keys outside a row's range become -inf.
void mask_band(const RowBlock& block, std::int64_t key0, int keys, float* s) {
  for (int half = 0; half < 2; ++half) {
    alignas(64) std::int32_t from[16], to[16];
    for (int r = 0; r < 16; ++r) {
      const auto inside = [&](std::int64_t key) {
        return static_cast<std::int32_t>(key < key0 ? 0 : key > key0 + keys ? keys : key - key0);
      };
      from[r] = inside(block.lo[half * 16 + r]);
      to[r] = inside(block.hi[half * 16 + r]);
    }
    const __m512i lo = _mm512_load_si512(from), hi = _mm512_load_si512(to);
    for (int k = 0; k < keys; ++k) {
      const __m512i key = _mm512_set1_epi32(k);
      float* at = s + half * kScoreHalf + k * kLanes;
      store(at, hide_by_band(load(at), key, lo, hi));
    }
  }
}

// Dropped weights become 0 in the pairs [2][kKeys / 2][16 rows]; 1 / (1 - p) is applied to the finished rows.
void drop_weights(const Dropout& dropout, const RowBlock& block, std::uint32_t batch, std::int64_t key0, int keys,
                  float* scores) {
  for (int r = 0; r < kRows; ++r) {
    auto* weights = reinterpret_cast<std::uint32_t*>(scores) + r / kLanes * kScoreHalf + r % kLanes;
    for (int k = 0; k < keys; k += 4, weights += 2 * kLanes) {
      const PhiloxBlock draw =
          dropout.draws(batch, block.head[r], block.token[r], static_cast<std::uint32_t>((key0 + k) / 4));
      const auto keep = [&](int i) { return dropout.kept(draw.word[i]) ? 0xffffu : 0u; };
      weights[0] &= keep(0) | keep(1) << 16;
      weights[kLanes] &= keep(2) | keep(3) << 16;
    }
  }
}

}  // namespace
}  // namespace onepass::cpu::amx
