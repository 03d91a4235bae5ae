// The SIMD adapter of the AMX kernels: 16 numbers, one query row per lane, and the algebra's arithmetic on them.
// Included after target-inl.h.
namespace onepass::cpu::amx {
namespace {

struct F16x {
  __m512 v;
  friend AMX_INLINE F16x operator+(F16x a, F16x b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend AMX_INLINE F16x operator-(F16x a, F16x b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend AMX_INLINE F16x operator*(F16x a, F16x b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend AMX_INLINE F16x operator/(F16x a, F16x b) { return {_mm512_div_ps(a.v, b.v)}; }
};
using Vec = F16x;

AMX_INLINE Vec load(const float* p) { return {_mm512_load_ps(p)}; }
AMX_INLINE void store(float* p, Vec x) { _mm512_store_ps(p, x.v); }
AMX_INLINE Vec set(float x) { return {_mm512_set1_ps(x)}; }
AMX_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
AMX_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
AMX_INLINE Vec select(__mmask16 m, Vec yes, Vec no) { return {_mm512_mask_mov_ps(no.v, m, yes.v)}; }
AMX_INLINE Vec minus_infinity() { return {_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(0xff800000u)))}; }
AMX_INLINE __mmask16 within(Vec x, float magnitude) {
  return _mm512_cmp_ps_mask(_mm512_abs_ps(x.v), _mm512_set1_ps(magnitude), _CMP_LE_OQ);
}
AMX_INLINE __mmask16 above(Vec x, Vec y) { return _mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ); }
AMX_INLINE __mmask16 equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }

// Degree 5, relative error 1.6e-7 with rounding, and exact powers of two at integers: for what happens once a row.
AMX_INLINE Vec exp2_exact(Vec x) {
  const Vec f{_mm512_reduce_ps(x.v, 0x09)};
  Vec p = fma(set(0.00187757667f), f, set(0.00898934009f));
  p = fma(p, f, set(0.0558263181f));
  p = fma(p, f, set(0.240153617f));
  p = fma(p, f, set(0.693153073f));
  p = fma(p, f, set(0.999999925f));
  return {_mm512_scalef_ps(select(equal(f, set(0.0f)), set(1.0f), p).v, x.v)};
}

// Odd polynomial (minimax, 5e-9) below 0.64, where 1 - 2 / (e^2x + 1) would cancel.
AMX_INLINE Vec tanh(Vec x) {
  const Vec y = x * x;
  Vec p = fma(set(-0.00555816597f), y, set(0.020500728f));
  p = fma(p, y, set(-0.0536935233f));
  p = fma(p, y, set(0.133307919f));
  p = fma(p, y, set(-0.333332466f));
  p = fma(p, y, set(0.999999995f));
  const Vec e = exp2_exact({_mm512_mul_ps(_mm512_abs_ps(x.v), _mm512_set1_ps(2.8853900817779268f))});
  const Vec big = set(1.0f) - set(2.0f) / (e + set(1.0f));
  const __m512 sign = _mm512_and_ps(x.v, _mm512_set1_ps(-0.0f));
  return select(_mm512_cmp_ps_mask(_mm512_abs_ps(x.v), _mm512_set1_ps(0.64f), _CMP_LT_OQ), p * x,
                {_mm512_or_ps(big.v, sign)});
}

template <>
struct Arith<Vec> {
  static AMX_INLINE Vec of(double x) { return set(static_cast<float>(x)); }
  static AMX_INLINE Vec neg_inf() { return minus_infinity(); }
  static AMX_INLINE Vec exp2(Vec x) { return exp2_exact(x); }
  // Mantissa in [0.75, 1.5) by getmant, then 2 atanh((y - 1) / (y + 1)) / ln 2: absolute error 2e-9 before rounding.
  static AMX_INLINE Vec log2(Vec x) {
    const Vec y{_mm512_getmant_ps(x.v, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src)};
    const Vec exponent{_mm512_getexp_ps(_mm512_div_ps(x.v, y.v))};
    const Vec t = (y - set(1.0f)) / (y + set(1.0f)), t2 = t * t;
    Vec p = fma(set(0.439106795f), t2, set(0.576393816f));
    p = fma(p, t2, set(0.961802222f));
    p = fma(p, t2, set(2.88539007f));
    return fma(p, t, exponent);
  }
  static AMX_INLINE Vec max(Vec a, Vec b) { return amx::max(a, b); }
  static AMX_INLINE Vec mul(Vec a, Vec b) { return a * b; }
  static AMX_INLINE Vec mul_add(Vec a, Vec b, Vec c) { return fma(a, b, c); }
  static AMX_INLINE Vec if_within(Vec x, double bound, Vec then, Vec otherwise) {
    return select(within(x, static_cast<float>(bound)), then, otherwise);
  }
  static AMX_INLINE Vec if_neg_inf(Vec x, Vec then, Vec otherwise) {
    return select(equal(x, minus_infinity()), then, otherwise);
  }
  static AMX_INLINE Vec if_zero(Vec x, Vec then, Vec otherwise) { return select(equal(x, set(0.0f)), then, otherwise); }
  static AMX_INLINE Vec abs(Vec x) { return {_mm512_abs_ps(x.v)}; }
  static AMX_INLINE Vec tanh(Vec x) { return amx::tanh(x); }
  static AMX_INLINE Vec neg_mul_add(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a b
  static AMX_INLINE Vec select(__mmask16 m, Vec then, Vec otherwise) { return amx::select(m, then, otherwise); }
  static AMX_INLINE __mmask16 nonzero(__m512i x) { return _mm512_test_epi32_mask(x, x); }
  static AMX_INLINE __mmask16 between(__m512i x, __m512i from, __m512i to) {
    return _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(from, x), to, x);
  }
};

// Eight vectors of scores at a time, for the weights beside the tiles. 2^x = p(x - floor x) * 2^floor x, where p is the
// minimax fit of degree 4 with p(0) = 1, relative error 2.9e-6: bf16 weights need 2e-3, but an LSE within 1e-5 of the
// truth needs less than degree 3's 7.5e-5. 2^-inf is 0, NaN stays. Step by step over the vectors, so that no operand is
// waited for: the chain of one vector is 40 cycles long, and a scheduler full of waiting operations would keep the
// tiles' from entering.
struct Octet {
  Vec v[8];
};
template <>
struct Arith<Octet> {
  static AMX_INLINE Octet mul_add(const Octet& a, const Octet& b, const Octet& c) {
    Octet r;
    for (int i = 0; i < 8; ++i) r.v[i] = fma(a.v[i], b.v[i], c.v[i]);
    return r;
  }
  static AMX_INLINE Octet exp2(const Octet& x) {
    Octet f, p;
    for (int i = 0; i < 8; ++i) f.v[i] = {_mm512_reduce_ps(x.v[i].v, 0x09)};
    for (int i = 0; i < 8; ++i) p.v[i] = fma(set(0.0134266843f), f.v[i], set(0.0522424742f));
    for (int i = 0; i < 8; ++i) p.v[i] = fma(p.v[i], f.v[i], set(0.241280205f));
    for (int i = 0; i < 8; ++i) p.v[i] = fma(p.v[i], f.v[i], set(0.693044845f));
    for (int i = 0; i < 8; ++i) p.v[i] = fma(p.v[i], f.v[i], set(1.0f));
    for (int i = 0; i < 8; ++i) p.v[i] = {_mm512_scalef_ps(p.v[i].v, x.v[i].v)};
    return p;
  }
};

AMX_INLINE __mmask32 first_bits(std::int64_t n) { return n >= 32 ? 0xffffffffu : n <= 0 ? 0u : (1u << n) - 1u; }

// A bit for each of 32 numbers of bf16 that is NaN or infinite.
AMX_INLINE __mmask32 not_finite(__m512i x) {
  const __m512i infinity = _mm512_set1_epi16(0x7f80);
  return _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, infinity), infinity);
}

// dword i of row j becomes dword j of row i.
AMX_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {  // r[4 a + i] holds columns i, i + 4, i + 8, i + 12 of rows 4 a .. 4 a + 3
    const __m512i ab_even = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88),
                  ab_odd = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    const __m512i cd_even = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88),
                  cd_odd = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    t[i] = _mm512_shuffle_i32x4(ab_even, cd_even, 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(ab_even, cd_even, 0xdd);
    t[4 + i] = _mm512_shuffle_i32x4(ab_odd, cd_odd, 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(ab_odd, cd_odd, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Two fp32 vectors as bf16 pairs: dword i = (even[i], odd[i]). Ties go up, not to even: weights are one tie in 2^16.
AMX_INLINE __m512i pair_weights(Vec even, Vec odd) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i lo = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even.v), half), 16);
  const __m512i hi = _mm512_add_epi32(_mm512_castps_si512(odd.v), half);
  return _mm512_mask_blend_epi16(0xaaaaaaaau, lo, hi);
}

// Round to nearest even, NaN stays NaN.
AMX_INLINE __m256i to_bf16(Vec x) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0)));
}

}  // namespace
}  // namespace onepass::cpu::amx
