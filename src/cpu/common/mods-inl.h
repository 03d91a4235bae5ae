// score_mod and mask_mod over tiles of scores [key][lane], compiled for one instruction set.
#if defined(ONEPASS_CPU_MODS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_MODS_INL_H
#undef ONEPASS_CPU_MODS_INL_H
#else
#define ONEPASS_CPU_MODS_INL_H
#endif

#include <cmath>

#include "cpu/common/simd-inl.h"
#include "expression/dual.hpp"
#include "problem/implementation.hpp"

HWY_BEFORE_NAMESPACE();
#undef ONEPASS_BEGIN
#undef ONEPASS_END
#define ONEPASS_BEGIN      \
  namespace onepass::cpu { \
  namespace HWY_NAMESPACE {
#define ONEPASS_END \
  }                 \
  }
#define ONEPASS_PER_TARGET
#include "expression/dual.hpp"  // and eval.hpp
#undef ONEPASS_PER_TARGET
#undef ONEPASS_BEGIN
#undef ONEPASS_END

namespace onepass::cpu {
namespace HWY_NAMESPACE {

// The arguments that the softmax's exp2 and log2 never see: 128 and above, and below 0. A NaN is kept.
ONEPASS_HD VF exp2_anywhere(VF x) {
  const VF most = splat(127.0f), inf = splat(std::numeric_limits<float>::infinity());
  const VF y = exp2_of(hn::IfThenElse(hn::Gt(x, most), x - splat(1.0f), x));
  return hn::IfThenElse(hn::Ge(x, splat(128.0f)), inf, hn::IfThenElse(hn::Gt(x, most), y + y, y));
}
ONEPASS_HD VF log2_anywhere(VF x) {
  return hn::IfThenElse(hn::Lt(x, hn::Zero(DF())), splat(std::numeric_limits<float>::quiet_NaN()), log2_of(x));
}

// sin(x + turns pi/2) within 2e-7 for |x| to 8192: x loses whole quarter turns, in three parts of pi/2 whose products
// are exact or small, and two polynomials (Cephes) give the rest. Vectors with larger numbers are computed one by one.
ONEPASS_HD VF sin_of(VF x, int turns) {
  if (!hn::AllTrue(DF(), hn::Le(hn::Abs(x), splat(8192.0f)))) {
    alignas(64) float each[kLanes];
    hn::Store(x, DF(), each);
    for (float& y : each) y = static_cast<float>(turns == 0 ? std::sin(double{y}) : std::cos(double{y}));
    return hn::Load(DF(), each);
  }
  const VI n = hn::NearestInt(x * splat(0.636619772f));
  const VF whole = hn::ConvertTo(DF(), n);
  VF r = hn::NegMulAdd(whole, splat(1.5703125f), x);
  r = hn::NegMulAdd(whole, splat(4.83751297e-4f), r);
  r = hn::NegMulAdd(whole, splat(7.54978995e-8f), r);
  const VF z = r * r;
  VF s = hn::MulAdd(splat(-1.9515295891e-4f), z, splat(8.3321608736e-3f));
  s = hn::MulAdd(hn::MulAdd(s, z, splat(-1.6666654611e-1f)) * z, r, r);
  VF c = hn::MulAdd(splat(2.443315711809948e-5f), z, splat(-1.388731625493765e-3f));
  c = hn::MulAdd(hn::MulAdd(c, z, splat(4.166664568298827e-2f)), z * z, hn::NegMulAdd(z, splat(0.5f), splat(1.0f)));
  const VI quarter = n + hn::Set(DI(), turns), one = hn::Set(DI(), 1);
  const VF y = hn::IfThenElse(hn::RebindMask(DF(), hn::Eq(quarter & one, one)), c, s);
  const VI sign = hn::ShiftLeft<30>(quarter & hn::Set(DI(), 2));
  return hn::BitCast(DF(), hn::BitCast(DI(), y) ^ sign);
}

struct VectorFunctions {
  static void apply(ExprCode code, const float* in, float* out, int n) {
    switch (code) {
      case ExprCode::exp:
        return map(in, out, n, [](VF x) HWY_ATTR { return exp2_anywhere(x * splat(static_cast<float>(kLog2e))); });
      case ExprCode::exp2: return map(in, out, n, [](VF x) HWY_ATTR { return exp2_anywhere(x); });
      case ExprCode::log:
        return map(in, out, n, [](VF x) HWY_ATTR { return log2_anywhere(x) * splat(static_cast<float>(kLn2)); });
      case ExprCode::log2: return map(in, out, n, [](VF x) HWY_ATTR { return log2_anywhere(x); });
      case ExprCode::sqrt: return map(in, out, n, [](VF x) HWY_ATTR { return hn::Sqrt(x); });
      case ExprCode::tanh: return map(in, out, n, [](VF x) HWY_ATTR { return tanh_of(x); });
      case ExprCode::sin: return map(in, out, n, [](VF x) HWY_ATTR { return sin_of(x, 0); });
      case ExprCode::cos: return map(in, out, n, [](VF x) HWY_ATTR { return sin_of(x, 1); });
      case ExprCode::floor: return map(in, out, n, [](VF x) HWY_ATTR { return hn::Floor(x); });
      default: return map(in, out, n, [](VF x) HWY_ATTR { return hn::Ceil(x); });
    }
  }

 private:
  // Whole vectors: a block of values ends on one.
  template <class Op>
  static void map(const float* in, float* out, int n, Op op) {
    for (int i = 0; i < n; i += kLanes) hn::Store(op(hn::Load(DF(), in + i)), DF(), out + i);
  }
};
static_assert(kExprBlock % kLanes == 0);

using RunMod = ExprRun<float, VectorFunctions>;

// Natural scores become those of a score_mod.
inline void change_scores(const Expression& mod, const Tensors& a, const ExprMemory<float>& memory,
                          const ExprTile<float>& tile) {
  RunMod(mod, a.mod_buffers, memory).change(tile);
}
// The tile's numbers become `hidden` where a mask_mod is false.
inline void hide(const Expression& mod, const Tensors& a, const ExprMemory<float>& memory, const ExprTile<float>& tile,
                 float hidden) {
  RunMod(mod, a.mod_buffers, memory).hide(tile, hidden);
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
