// Values that are not finite (algebra/nonfinite.hpp). A product with the weights multiplies a hidden key's weight of 0
// with its value, and 0 times infinity is NaN. So a block of V that holds such elements enters the product with zeros
// in their place, and bits bring them to the rows that see their keys:
//
//   flags[column]   bit k: the element of key k is not finite
//   visible[lane]   bit k: the row sees key k
//   lost[column][lane] |= flags[column] & visible[lane]
//
// An element of O that has lost something is NaN, which may stand for an infinity. That is 8 instructions for a column
// and a vector of rows, beside the 2 x 96 of the block's products. Dropout does not matter: a dropped key's infinity is
// multiplied with 0, which is NaN, too.
//
// Scores keep NaN and infinity by themselves: lanes are rows, and each pair has its own sum.
#if defined(ONEPASS_CPU_NONFINITE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_NONFINITE_INL_H
#undef ONEPASS_CPU_NONFINITE_INL_H
#else
#define ONEPASS_CPU_NONFINITE_INL_H
#endif

#include <bit>
#include <limits>

#include "cpu/common/simd-inl.h"
#include "cpu/flash/pack-inl.h"
#include "cpu/flash/scores-inl.h"
#include "cpu/flash/segments-inl.h"
#include "cpu/flash/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// The flags of a block of V: [kFlagWords][dim_v], and the keys that have any.
struct Nonfinite {
  const std::uint32_t* flags;
  std::uint32_t keys[kFlagWords];
};

// Values become finite, in scratch.v unless they are packed, which are finite already.
inline Nonfinite separate(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch,
                          Block& block) {
  const std::int64_t dim = call.problem.dim_v;
  Nonfinite n{scratch.flags, {}};
  if (call.v_source == flash::Source::packed) {
    n.flags = call.flags_of(task.slot, block.first);
  } else {
    if (call.v_source == flash::Source::in_place) {
      convert_v(call, task, block.first, block.keys, scratch.v);
      block.v = scratch.v;
      block.v_tiled = true;
    }
    take_nonfinite(scratch.v, block.keys, dim, scratch.flags);
  }
  for (int word = 0; word < kFlagWords; ++word)
    for (std::int64_t d = 0; d < dim; ++d) n.keys[word] |= n.flags[word * dim + d];
  return n;
}

// The flagged keys in [lo, hi), counted from the block's first, that a vector of rows sees: their scores are not -inf.
inline void note_visible(const Nonfinite& n, int lane, std::int64_t lo, std::int64_t hi, const float* scores,
                         std::uint32_t* visible) {
  for (int word = 0; word < kFlagWords; ++word) {
    auto seen = hn::Zero(DU());
    for (std::uint32_t left = n.keys[word]; left != 0; left &= left - 1) {
      const std::int64_t key = word * kFlagKeys + std::countr_zero(left);
      if (key < lo || key >= hi) continue;
      const auto hidden = hn::Eq(hn::Load(DF(), scores + key * kPanel + lane), Arith<VF>::neg_inf());
      seen = hn::Or(seen, hn::IfThenZeroElse(hn::RebindMask(DU(), hidden), hn::Set(DU(), left & -left)));
    }
    hn::Store(seen, DU(), visible + word * kPanel + lane);
  }
}

// The first call of a panel clears lost.
inline void add_lost(const Nonfinite& n, const std::uint32_t* visible, std::int64_t dim, int vecs, bool& any,
                     std::uint32_t* lost) {
  if (!any) std::fill_n(lost, dim * kPanel, 0u);
  any = true;
  for (std::int64_t d = 0; d < dim; ++d, lost += kPanel) {
    std::uint32_t flags[kFlagWords], all = 0;
    for (int word = 0; word < kFlagWords; ++word) all |= flags[word] = n.flags[word * dim + d];
    if (all == 0) continue;
    for (int lane = 0; lane < vecs * kLanes; lane += kLanes) {
      auto sum = hn::Load(DU(), lost + lane);
      for (int word = 0; word < kFlagWords; ++word) {
        const auto seen = hn::Load(DU(), visible + word * kPanel + lane);
        sum = hn::Or(sum, hn::And(hn::Set(DU(), flags[word]), seen));
      }
      hn::Store(sum, DU(), lost + lane);
    }
  }
}

// out = out * factor, or NaN where something is lost.
inline void join_lost(const std::uint32_t* lost, const float* factor, std::int64_t dim, int vecs, float* out) {
  const VF nan = splat(std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t d = 0; d < dim; ++d) {
    for (int lane = 0; lane < vecs * kLanes; lane += kLanes) {
      float* const at = out + d * kPanel + lane;
      const auto none = hn::Eq(hn::Load(DU(), lost + d * kPanel + lane), hn::Zero(DU()));
      const VF x = hn::Load(DF(), at) * hn::Load(DF(), factor + lane);
      hn::Store(hn::IfThenElse(hn::RebindMask(DF(), none), x, nan), DF(), at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
