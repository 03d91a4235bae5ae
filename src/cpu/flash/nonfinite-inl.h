// Values that are not finite (algebra/nonfinite.hpp). A product with the weights multiplies a hidden key's weight of 0
// with its value, and 0 times infinity is NaN. So a block of V that holds such elements enters the product with zeros
// in their place, and a second product brings them to the rows that see their keys:
//
//   lost[column][lane] += sum over keys of visible[key][lane] * flag[key][column]
//
// A visible key counts 2, a hidden one 0; an infinity has a flag of 3e38 with its sign, and 2 * 3e38 overflows. Flags
// of both signs are summed apart, because a fused multiply-add leaves an infinity what it is; lost joins them to an
// infinity, or to NaN where both meet. A NaN is both at once. So is an infinity whose key dropout drops, because the
// formula multiplies it with 0. A key whose values are NaN throughout needs no flags: its visible weights become NaN.
//
// Scores keep NaN and infinity by themselves: lanes are rows, and each pair has its own sum.
#if defined(ONEPASS_CPU_NONFINITE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_NONFINITE_INL_H
#undef ONEPASS_CPU_NONFINITE_INL_H
#else
#define ONEPASS_CPU_NONFINITE_INL_H
#endif

#include <limits>

#include "cpu/common/simd-inl.h"
#include "cpu/flash/pack-inl.h"
#include "cpu/flash/scores-inl.h"
#include "cpu/flash/segments-inl.h"
#include "cpu/flash/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

inline constexpr float kVisible = 2.0f, kFlag = 3e38f;

// Rows of flags, positive and negative ones, and keys of NaNs. Keys count from the block's first.
struct Nonfinite {
  int capacity = 0;  // rows of each sign
  int rows[2] = {0, 0}, whole_keys = 0;
  std::int16_t key[2][2 * kBlock], whole_key[kBlock];
  std::int16_t dropped_row[2][kBlock];  // the row of a key that counts where the key is dropped; -1: none

  bool any() const { return rows[0] + rows[1] > 0; }
  int at(int sign, int row) const { return sign * capacity + row; }  // rows of flags and of visible; then whole keys
};

// One row of V becomes finite. Appends its flags.
inline void flag_row(float* row, std::int64_t dim, std::int16_t key, bool dropout, float* flags, Nonfinite& n) {
  const auto each = [&](auto&& f) HWY_ATTR {
    std::int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) f(d, hn::LoadU(DF(), row + d), std::int64_t{kLanes});
    if (d < dim) f(d, load_n(DF(), row + d, dim - d), dim - d);
  };
  const auto put = [](VF x, float* to, std::int64_t count)
                       HWY_ATTR { count == kLanes ? hn::StoreU(x, DF(), to) : store_n(x, DF(), to, count); };
  VF probe = hn::Zero(DF()), most = hn::Zero(DF()), least = hn::Zero(DF());
  auto all_nan = hn::FirstN(DF(), kLanes);
  const auto flag = [](VF x, int sign) HWY_ATTR {  // of a NaN both
    const auto other = sign == 0 ? hn::Lt(x, hn::Zero(DF())) : hn::Gt(x, hn::Zero(DF()));
    return hn::IfThenZeroElse(hn::Or(hn::IsFinite(x), other), splat(sign == 0 ? kFlag : -kFlag));
  };
  each([&](std::int64_t, VF x, std::int64_t count) HWY_ATTR {
    probe = probe_finite(probe, x);
    most = hn::Max(most, flag(x, 0));
    least = hn::Min(least, flag(x, 1));
    all_nan = hn::And(all_nan, hn::Or(hn::IsNaN(x), hn::Not(hn::FirstN(DF(), static_cast<std::size_t>(count)))));
  });
  if (all_zero(probe)) return;
  if (hn::AllTrue(DF(), all_nan)) {
    n.whole_key[n.whole_keys++] = key;
    std::fill_n(row, dim, 0.0f);
    return;
  }
  for (int sign = 0; sign < 2; ++sign) {
    const auto append = [&](auto&& of) HWY_ATTR {
      float* const to = flags + n.at(sign, n.rows[sign]) * dim;
      n.key[sign][n.rows[sign]++] = key;
      each([&](std::int64_t d, VF x, std::int64_t count) HWY_ATTR { put(of(x), to + d, count); });
    };
    if (!all_zero(sign == 0 ? most : least)) append([&](VF x) HWY_ATTR { return flag(x, sign); });
    if (!dropout) continue;
    n.dropped_row[sign][key] = static_cast<std::int16_t>(n.rows[sign]);
    append([&](VF x) HWY_ATTR { return hn::IfThenZeroElse(hn::IsFinite(x), splat(sign == 0 ? kFlag : -kFlag)); });
  }
  each([&](std::int64_t d, VF x, std::int64_t count)
           HWY_ATTR { put(hn::IfThenElseZero(hn::IsFinite(x), x), row + d, count); });
}

// The values of a block once more, as rows: finite ones, with zeros for the others, whose flags lie in scratch.flags.
inline void separate(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch, Block& block,
                     Nonfinite& n) {
  const std::int64_t dim = call.problem.dim_v;
  const KeyValueView values = values_of(call.arguments, task.seq);
  convert_rows(values, dim, task, block.first, block.keys, scratch.v);
  const bool dropout = call.dropout.active();
  n.capacity = (dropout ? 2 : 1) * kBlock;
  n.rows[0] = n.rows[1] = n.whole_keys = 0;
  for (auto& rows : n.dropped_row) std::fill_n(rows, kBlock, std::int16_t{-1});
  for (std::int64_t k = 0; k < block.keys; ++k) {
    float* const row = scratch.v + k * dim;
    if (values.centered()) add_mean(values, task.head_kv, 0, row, dim);
    flag_row(row, dim, static_cast<std::int16_t>(k), dropout, scratch.flags, n);
  }
  block.v = scratch.v;
  block.v_stride = dim;
  block.v_tiled = false;
}

// The lanes of a vector of rows that see the flagged keys: their scores, in keys [lo, hi), are not -inf yet. Keys of
// NaNs have rows behind the others, of NaN and 0, which are added to weights.
inline void note_visible(const Nonfinite& n, std::int64_t first, int lane, std::int64_t lo, std::int64_t hi,
                         const float* scores, float* visible) {
  const auto note = [&](std::int64_t key, float seen, float* to) HWY_ATTR {
    VF v = hn::Zero(DF());
    if (first + key >= lo && first + key < hi) {
      const auto hidden = hn::Eq(hn::Load(DF(), scores + key * kPanel + lane), Arith<VF>::neg_inf());
      v = hn::IfThenZeroElse(hidden, splat(seen));
    }
    hn::Store(v, DF(), to + lane);
  };
  for (int sign = 0; sign < 2; ++sign)
    for (int i = 0; i < n.rows[sign]; ++i) note(n.key[sign][i], kVisible, visible + n.at(sign, i) * kPanel);
  for (int i = 0; i < n.whole_keys; ++i)
    note(n.whole_key[i], std::numeric_limits<float>::quiet_NaN(), visible + n.at(2, i) * kPanel);
}

// After dropout: rows for dropped keys count where their keys are dropped. And weights of keys of NaNs become NaN.
inline void note_dropped(const Nonfinite& n, const Dropout& dropout, std::uint32_t batch, const PanelScores& panel,
                         std::int64_t first, int lane, std::int64_t lo, std::int64_t hi, float* visible) {
  each_draw(dropout, batch, panel, lane, lo, hi, [&](std::int64_t k, hn::Mask<DF> kept) HWY_ATTR {
    for (int sign = 0; sign < 2; ++sign) {
      const int row = n.dropped_row[sign][k - first];
      if (row < 0) return;
      float* const at = visible + n.at(sign, row) * kPanel + lane;
      hn::Store(hn::IfThenZeroElse(kept, hn::Load(DF(), at)), DF(), at);
    }
  });
}
inline void spoil_weights(const Nonfinite& n, std::int64_t first, int lane, std::int64_t lo, std::int64_t hi,
                          const float* visible, float* weights) {
  for (int i = 0; i < n.whole_keys; ++i) {
    const std::int64_t key = n.whole_key[i];
    if (first + key < lo || first + key >= hi) continue;
    float* const at = weights + key * kPanel + lane;
    hn::Store(hn::Load(DF(), at) + hn::Load(DF(), visible + n.at(2, i) * kPanel + lane), DF(), at);
  }
}

// lost += visible * flags; the first call of a panel clears it.
inline void add_lost(const Nonfinite& n, const flash::Scratch& scratch, std::int64_t dim, int vecs, bool& any,
                     float* lost) {
  if (!n.any()) return;
  if (!any) std::fill_n(lost, dim * kPanel, 0.0f);
  any = true;
  HWY_ALIGN float one[kPanel];
  std::fill_n(one, kPanel, 1.0f);
  for (int sign = 0; sign < 2; ++sign) {
    const float *const visible = scratch.visible + n.at(sign, 0) * kPanel, *const flags =
                                                                               scratch.flags + n.at(sign, 0) * dim;
    for (std::int64_t column = 0; column < dim && n.rows[sign] > 0; column += kTileDims) {
      const int width = static_cast<int>(std::min<std::int64_t>(kTileDims, dim - column));
      kAccumulateTiles[vecs - 1][width - 1](visible, flags + column, dim, n.rows[sign], lost + column * kPanel, one);
    }
  }
}

// out = out * factor + lost.
inline void join_lost(const float* lost, const float* factor, std::int64_t dim, int vecs, float* out) {
  for (std::int64_t d = 0; d < dim; ++d) {
    for (int lane = 0; lane < vecs * kLanes; lane += kLanes) {
      float* const at = out + d * kPanel + lane;
      hn::Store(hn::MulAdd(hn::Load(DF(), at), hn::Load(DF(), factor + lane), hn::Load(DF(), lost + d * kPanel + lane)),
                DF(), at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
