// One SIMD target as the kernels see it: the online-softmax algebra over vectors (Arith<VF>), exp2, log2, tanh, and
// loads and stores that turn fp32, fp16 and bf16 memory into fp32 vectors. Included once per target.
#if defined(ONEPASS_CPU_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_SIMD_INL_H
#undef ONEPASS_CPU_SIMD_INL_H
#else
#define ONEPASS_CPU_SIMD_INL_H
#endif

#include "cpu/common/targets.hpp"

#include <bit>
#include <cstdint>
#include <limits>

#include <hwy/highway.h>

#include "algebra/entropy.hpp"
#include "algebra/nonfinite.hpp"
#include "algebra/numerics.hpp"
#include "algebra/philox.hpp"
#include "algebra/scalar.hpp"

HWY_BEFORE_NAMESPACE();
// The algebra's header-free texts once more, in this target's namespace
#undef ONEPASS_BEGIN
#undef ONEPASS_END
#define ONEPASS_BEGIN      \
  namespace onepass::cpu { \
  namespace HWY_NAMESPACE {
#define ONEPASS_END \
  }                 \
  }
#define ONEPASS_PER_TARGET
#include "algebra/nonfinite.hpp"
#include "algebra/philox_rounds.hpp"
#include "cpu/common/score_chain.hpp"
// They include the algebra, which this one needs.
#include "algebra/entropy.hpp"
#undef ONEPASS_PER_TARGET
#undef ONEPASS_BEGIN
#undef ONEPASS_END

namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
inline constexpr bool kAvx512 = HWY_TARGET == HWY_AVX3;

ONEPASS_HD VF splat(float x) { return hn::Set(DF(), x); }

// 2^x for x < 128: at most 2.6 ulp off, exactly 0 below -126 (and for -inf), NaN kept. A polynomial of degree 5, the
// minimax fit of 2^f with p(0) = 1 (relative error 8.2e-8, against 7.5e-8 without), so that 2^0 is 1: a reference that
// stays where it is rescales nothing.
ONEPASS_HD VF exp2_of(VF x) {
#if HWY_TARGET == HWY_AVX3
  // f = x - floor(x), then p * 2^floor(x) with hardware underflow: 7 instructions.
  const VF f{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  VF p = hn::MulAdd(splat(0.00186713293f), f, splat(0.00901702428f));
  p = hn::MulAdd(p, f, splat(0.0557999174f));
  p = hn::MulAdd(p, f, splat(0.240164449f));
  p = hn::MulAdd(p, f, splat(0.693151312f));
  p = hn::MulAdd(p, f, splat(1.0f));
  return VF{_mm512_scalef_ps(p.raw, x.raw)};
#else
  // Adding 1.5 * 2^23 + 127 rounds x to an integer n and leaves n + 127 in the low bits: shifted up, they are 2^n.
  const VF magic = splat(12582912.0f + 127.0f);
  const VF t = x + magic;
  const VF f = x - (t - magic);
  VF p = hn::MulAdd(splat(0.00132647292f), f, splat(0.00967151365f));
  p = hn::MulAdd(p, f, splat(0.0555073375f));
  p = hn::MulAdd(p, f, splat(0.240222421f));
  p = hn::MulAdd(p, f, splat(0.693146978f));
  p = hn::MulAdd(p, f, splat(1.0f));
  const VF power = hn::BitCast(DF(), hn::ShiftLeft<23>(hn::BitCast(DI(), t)));
  return hn::IfThenZeroElse(hn::Lt(x, splat(-126.0f)), p * power);
#endif
}

// log2 of a normal number, about 1 ulp of the larger of |log2 x| and 1; -inf of 0; inf and NaN are kept.
// x = 2^e * y with y in [sqrt(1/2), sqrt(2)); log2 y = 2/ln2 * atanh((y - 1) / (y + 1)), whose series ends at s^9.
ONEPASS_HD VF log2_of(VF x) {
  constexpr std::int32_t kSqrtHalf = 0x3f3504f3;
  const VI bits = hn::BitCast(DI(), x);
  const VI e = hn::ShiftRight<23>(bits - hn::Set(DI(), kSqrtHalf));
  const VF y = hn::BitCast(DF(), bits - hn::ShiftLeft<23>(e));
  const VF one = splat(1.0f), s = (y - one) / (y + one), z = s * s;
  constexpr float kScale = static_cast<float>(2.0 / kLn2);
  VF p = hn::MulAdd(splat(kScale / 9), z, splat(kScale / 7));
  p = hn::MulAdd(p, z, splat(kScale / 5));
  p = hn::MulAdd(p, z, splat(kScale / 3));
  p = hn::MulAdd(p, z, splat(kScale));
  const VF r = hn::MulAdd(p, s, hn::ConvertTo(DF(), e));
  const VF inf = splat(std::numeric_limits<float>::infinity());
  return hn::IfThenElse(hn::Lt(x, inf), hn::IfThenElse(hn::Eq(x, hn::Zero(DF())), hn::Neg(inf), r), x);
}

// tanh within 3 ulp, NaN kept: an odd polynomial below 0.625, else 1 - 2 / (e^2|x| + 1).
ONEPASS_HD VF tanh_of(VF x) {
  const VF z = x * x;
  VF p = hn::MulAdd(splat(-0.00570499152f), z, splat(0.0206390918f));
  p = hn::MulAdd(p, z, splat(-0.0537397167f));
  p = hn::MulAdd(p, z, splat(0.133314422f));
  p = hn::MulAdd(p, z, splat(-0.333332819f));
  const VF small = hn::MulAdd(p * z, x, x);
  const VF a = hn::Abs(x);
  const VF e =
      exp2_of(hn::IfThenElse(hn::Gt(a, splat(10.0f)), splat(10.0f), a) * splat(static_cast<float>(2.0 * kLog2e)));
  const VF large = splat(1.0f) - splat(2.0f) / (e + splat(1.0f));
  return hn::IfThenElse(hn::Lt(a, splat(0.625f)), small, hn::CopySign(large, x));
}

// Arithmetic of the algebra, the non-finite policy and the chain of score features. max may drop a NaN: a NaN score
// makes a NaN weight, and l and O keep it.
template <>
struct Arith<VF> {
  ONEPASS_HD static VF of(double x) { return splat(static_cast<float>(x)); }
  ONEPASS_HD static VF neg_inf() { return splat(-std::numeric_limits<float>::infinity()); }
  ONEPASS_HD static VF exp2(VF x) { return exp2_of(x); }
  ONEPASS_HD static VF log2(VF x) { return log2_of(x); }
  ONEPASS_HD static VF mul(VF a, VF b) { return hn::Mul(a, b); }
  ONEPASS_HD static VF mul_add(VF a, VF b, VF c) { return hn::MulAdd(a, b, c); }
  ONEPASS_HD static VF max(VF a, VF b) { return hn::Max(a, b); }
  ONEPASS_HD static VF if_neg_inf(VF x, VF then, VF otherwise) {
    return hn::IfThenElse(hn::Eq(x, neg_inf()), then, otherwise);
  }
  ONEPASS_HD static VF if_within(VF x, double bound, VF then, VF otherwise) {
    return hn::IfThenElse(hn::Le(hn::Abs(x), splat(static_cast<float>(bound))), then, otherwise);
  }
  ONEPASS_HD static VF if_zero(VF x, VF then, VF otherwise) {
    return hn::IfThenElse(hn::Eq(x, hn::Zero(DF())), then, otherwise);
  }
  // Not by Max, which loses a NaN on NEON.
  ONEPASS_HD static VF at_least(VF x, double bound) {
    const VF least = of(bound);
    return hn::IfThenElse(hn::Lt(x, least), least, x);
  }
  ONEPASS_HD static VF abs(VF x) { return hn::Abs(x); }
  ONEPASS_HD static VF tanh(VF x) { return tanh_of(x); }
  ONEPASS_HD static VF neg_mul_add(VF a, VF b, VF c) { return hn::NegMulAdd(a, b, c); }  // c - a b
  using Mask = hn::Mask<DF>;
  ONEPASS_HD static VF select(Mask m, VF then, VF otherwise) { return hn::IfThenElse(m, then, otherwise); }
  ONEPASS_HD static Mask nonzero(VF x) { return hn::Ne(x, hn::Zero(DF())); }
  ONEPASS_HD static Mask between(VI x, VI from, VI to) {
    return hn::RebindMask(DF(), hn::AndNot(hn::Lt(x, from), hn::Lt(x, to)));
  }
};

ONEPASS_HD bool all_zero(VF x) { return hn::AllTrue(DF(), hn::Eq(x, hn::Zero(DF()))); }

// ---- memory as fp32 vectors. D: any float tag, so that a kernel may work with fewer lanes than a full vector.

template <class D>
ONEPASS_HD hn::Vec<D> load(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
ONEPASS_HD hn::Vec<D> load(D d, const bf16* p) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d,
                     hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)))));
}
template <class D>
ONEPASS_HD hn::Vec<D> load(D d, const f16* p) {
#if HWY_TARGET == HWY_SSE4  // Highway's emulation turns infinities into numbers
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)));
  const auto magnitude = bits & hn::Set(d32, 0x7fff), sign = hn::ShiftLeft<16>(bits ^ magnitude);
  const auto wide = hn::ShiftLeft<13>(magnitude);
  const auto m = hn::BitCast(di, magnitude);
  const auto normal = hn::BitCast(di, wide) + hn::Set(di, 112 << 23);
  const auto special = hn::BitCast(di, wide | hn::Set(d32, 0x7f800000));
  const auto tiny = hn::BitCast(di, hn::ConvertTo(d, m) * hn::Set(d, 0x1p-24f));
  const auto r = hn::IfThenElse(hn::Gt(m, hn::Set(di, 0x7bff)), special,
                                hn::IfThenElse(hn::Lt(m, hn::Set(di, 0x400)), tiny, normal));
  return hn::BitCast(d, hn::BitCast(d32, r) | sign);
#else
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#endif
}

// e4m3, without fp32's subnormals, which flush_to_zero.hpp's mode would lose: those of e4m3 are converted as integers.
template <class D>
ONEPASS_HD hn::Vec<D> load(D d, const f8e4m3* p) {
  const hn::Rebind<std::uint8_t, D> d8;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p)));
  const auto magnitude = bits & hn::Set(du, 0x7f), sign = hn::ShiftLeft<24>(bits ^ magnitude);
  const auto m = hn::BitCast(di, magnitude);
  const auto normal = hn::ShiftLeft<20>(m) + hn::Set(di, 120 << 23);
  const auto tiny = hn::BitCast(di, hn::ConvertTo(d, m) * hn::Set(d, 0x1p-9f));
  const auto r = hn::IfThenElse(hn::Gt(m, hn::Set(di, 0x7e)), hn::Set(di, 0x7fc00000),
                                hn::IfThenElse(hn::Lt(m, hn::Set(di, 8)), tiny, normal));
  return hn::BitCast(d, hn::BitCast(du, r) | sign);
}

// A boolean as a number: 1 or 0.
template <class D>
ONEPASS_HD hn::Vec<D> load(D d, const bool* p) {
  const hn::Rebind<std::uint8_t, D> d8;
  const hn::RebindToSigned<D> di;
  const auto x = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p)));
  return hn::ConvertTo(d, hn::Min(x, hn::Set(di, 1)));
}

// Round to nearest, ties to even, as algebra/numerics does.
template <class D>
ONEPASS_HD void store(hn::Vec<D> v, D d, float* p) {
  hn::StoreU(v, d, p);
}
template <class D>
ONEPASS_HD void store(hn::Vec<D> v, D, bf16* p) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto u = hn::BitCast(du, v);
  const auto even = hn::ShiftRight<16>(u) & hn::Set(du, 1);
  const auto rounded = hn::ShiftRight<16>(u + hn::Set(du, 0x7fff) + even);
  const auto quiet = hn::ShiftRight<16>(u) | hn::Set(du, 0x40);
  const auto r = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, r)), d16, reinterpret_cast<std::uint16_t*>(p));
}
template <class D>
ONEPASS_HD void store(hn::Vec<D> v, [[maybe_unused]] D d, f16* p) {
#if HWY_TARGET == HWY_SSE4  // Highway's emulation truncates
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto u = hn::BitCast(du, v);
  const auto magnitude = u & hn::Set(du, 0x7fffffff), sign = hn::ShiftRight<16>(u ^ magnitude);
  const auto a = hn::BitCast(di, magnitude);
  const auto tiny = hn::BitCast(di, hn::BitCast(d, a) + hn::Set(d, 0.5f)) - hn::Set(di, 0x3f000000);
  const auto odd = hn::BitCast(di, hn::ShiftRight<13>(magnitude) & hn::Set(du, 1));
  const auto normal = hn::ShiftRight<13>(a + hn::Set(di, 0xfff - (112 << 23)) + odd);
  const auto large = hn::IfThenElse(hn::Gt(a, hn::Set(di, 0x7f800000)), hn::Set(di, 0x7e00), hn::Set(di, 0x7c00));
  const auto r = hn::IfThenElse(hn::Gt(a, hn::Set(di, 0x477fefff)), large,
                                hn::IfThenElse(hn::Lt(a, hn::Set(di, 0x38800000)), tiny, normal));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::BitCast(du, r) | sign)), d16, reinterpret_cast<std::uint16_t*>(p));
#else
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
#endif
}

// The first n < lanes elements; the rest of the vector is 0 and the rest of memory is not touched.
template <class D, class T>
ONEPASS_HD hn::Vec<D> load_n(D d, const T* p, std::int64_t n) {
  HWY_ALIGN T part[hn::MaxLanes(D())] = {};
  for (std::int64_t i = 0; i < n; ++i) part[i] = p[i];
  return load(d, part);
}
template <class D, class T>
ONEPASS_HD void store_n(hn::Vec<D> v, D d, T* p, std::int64_t n) {
  HWY_ALIGN T part[hn::MaxLanes(D())];
  store(v, d, part);
  for (std::int64_t i = 0; i < n; ++i) p[i] = part[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
