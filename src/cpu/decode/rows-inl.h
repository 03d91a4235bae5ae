// The rows of a task of the few-row kernel: their memory, and what becomes of their states at the end.
#if defined(ONEPASS_CPU_DECODE_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_ROWS_INL_H
#undef ONEPASS_CPU_DECODE_ROWS_INL_H
#else
#define ONEPASS_CPU_DECODE_ROWS_INL_H
#endif

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "algebra/ceil_div.hpp"
#include "cpu/common/one_result.hpp"
#include "cpu/decode/decode.hpp"
#include "cpu/decode/scores-inl.h"
#include "cpu/decode/tile-inl.h"
#include "cpu/decode/walk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

template <int R>
using Rows = std::integral_constant<int, R>;

class DecodeRows {
 protected:
  DecodeRows(const DecodeJob& job, std::int64_t task, int worker)
      : p_(job.problem),
        a_(job.arguments),
        cut_(job.cut),
        partials_(job.partials),
        scratch_(job.scratch[worker]),
        params_(job.params),
        unit_(job.unit),
        one_result_(job.cut.one_result) {
    split_ = task % cut_.splits.count;
    const std::int64_t block = task / cut_.splits.count % cut_.head_blocks;
    batch_ = job.entries[static_cast<std::size_t>(task / cut_.splits.count / cut_.head_blocks)];
    head_lo_ = block * cut_.heads;
    heads_ = std::min(cut_.heads, p_.heads_kv - head_lo_);
    seq_ = sequence_of(p_, a_, batch_);
    band_ = band_mask(p_, seq_.seq_q, seq_.seq_k);
    rows_ = seq_.seq_q * p_.group();
    const Range visible = band_.key_range(0, seq_.seq_q);
    const std::int64_t chunk = cut_.splits.chunk_of(std::max<Index>(0, visible.hi - visible.lo));
    if (one_result_) {
      const std::int64_t lo = (visible.lo / chunk + split_) * chunk;
      keys_.lo = std::min<Index>(visible.hi, std::max<Index>(lo, visible.lo / kSumsOfKeys * kSumsOfKeys));
      keys_.hi = std::min<Index>(visible.hi, lo + chunk);
    } else {
      keys_.lo = std::min<Index>(visible.hi, visible.lo + split_ * chunk);
      keys_.hi = std::min<Index>(visible.hi, keys_.lo + chunk);
    }
    // Keys visible to every row.
    unmasked_ = {band_.keys_of(seq_.seq_q - 1).lo,
                 std::min<Index>(band_.keys_of(0).hi, seq_.seq_k - params_.tree.drafts)};
    features_ = params_.transforms() || params_.hides();
    if (job.mask_bounds && rows_ > 0 && keys_.lo < keys_.hi) look_at_mask(*job.mask_bounds);
  }

  void look_at_mask(const MaskBounds& bounds) {
    const std::int64_t first = one_result_ ? keys_.lo / cut_.chunk * cut_.chunk : keys_.lo;
    tiles_ = {scratch_.tiles, first, cut_.chunk, chunks_at_most(p_, cut_)};
    for (std::int64_t h = 0; h < heads_; ++h) {
      const std::int64_t head = (head_lo_ + h) * p_.group();
      bounds.classify_tiles({batch_, batch_, head, head + p_.group() - 1, 0, seq_.seq_q - 1, first, keys_.hi - 1},
                            seq_.seq_q, cut_.chunk, scratch_.tiles + h * tiles_.count, tiles_.count);
    }
  }

  // Returns true if a row of a head has an output that is not finite, and weights that are.
  bool spoiled(std::int64_t h) const {
    bool any = false;
    each_group([&](auto size, std::int64_t first) HWY_ATTR {
      constexpr int R = size();
      const std::int64_t rows = std::min<std::int64_t>(R, rows_ - first);
      if (finite(o_of(h, first), rows * scratch_.dim_v)) return;
      for (std::int64_t r = 0; r < rows; ++r) {
        float sum = 0;
        if (one_result_)
          sum = l_of(h, first + r)[0];
        else
          for (std::int64_t lane = r; lane < kLanes; lane += R) sum += l_of(h, first)[lane];
        any = any || (onepass::is_finite(sum) && !finite(o_of(h, first + r), scratch_.dim_v));
      }
    });
    return any;
  }

  // Row groups of 4, then 2 or 1 (in_groups).
  template <class F>
  void each_group(F f) const {
    for (std::int64_t r = 0; r < rows_;) {
      const std::int64_t left = rows_ - r;
      if (left >= 3)
        f(Rows<4>(), r), r += 4;
      else if (left == 2)
        f(Rows<2>(), r), r += 2;
      else
        f(Rows<1>(), r), r += 1;
    }
  }
  template <int R>
  void describe(std::int64_t h, std::int64_t first, DecodeRow* rows) const {
    for (int r = 0; r < R; ++r) {
      const std::int64_t row = std::min(first + r, rows_ - 1), token = row / p_.group();
      rows[r] = {token, (head_lo_ + h) * p_.group() + row % p_.group(), band_.keys_of(token)};
    }
  }
  float* q_of(std::int64_t h, std::int64_t r) const {
    return scratch_.q + (h * scratch_.padded_rows + r) * scratch_.dim_qk;
  }
  float* o_of(std::int64_t h, std::int64_t r) const {
    return scratch_.o + (h * scratch_.padded_rows + r) * scratch_.dim_v;
  }
  float* m_of(std::int64_t h, std::int64_t r) const {
    return scratch_.m + (h * scratch_.padded_rows + r) * kDecodeMaxLanes;
  }
  float* l_of(std::int64_t h, std::int64_t r) const {
    return scratch_.l + (h * scratch_.padded_rows + r) * kDecodeMaxLanes;
  }
  float* t_of(std::int64_t h, std::int64_t r) const {
    return scratch_.t ? scratch_.t + (h * scratch_.padded_rows + r) * kDecodeMaxLanes : nullptr;
  }

  float* alpha_of(std::int64_t h, std::int64_t r) const {
    return scratch_.alpha + (h * scratch_.padded_rows + r) * kDecodeMaxLanes;
  }
  float* lost_of(std::int64_t h, std::int64_t r) const {
    return scratch_.lost + (h * scratch_.padded_rows + r) * scratch_.dim_v;
  }
  // [key of the chunk][R]
  float* visible_of(std::int64_t h, std::int64_t r) const {
    return scratch_.visible + (h * scratch_.padded_rows + r) * cut_.chunk;
  }
  float* scores_of(std::int64_t h, std::int64_t r) const {
    return scratch_.scores + (h * scratch_.padded_rows + r) * cut_.chunk;
  }

  // l and t of a row group, joined.
  template <int R>
  void join_sums(std::int64_t h, std::int64_t first) const {
    if (one_result_) return;
    for (float* const sums : {l_of(h, first), t_of(h, first)}) {
      if (sums == nullptr) continue;
      const VF sum = over_keys<R>(hn::Load(DF(), sums), [](VF a, VF b) HWY_ATTR { return a + b; });
      hn::Store(sum, DF(), sums);
    }
  }
  // most: the largest score, where the state refers to unified_max.
  void put(std::int64_t h, std::int64_t r, const DecodeRow& row, const onepass::RowState<float>& state, float most,
           float entropy) const {
    const float* const o = o_of(h, r);
    if (partials_.state == nullptr)
      return finalize_row(p_, a_, seq_, row.head, row.token, &state, o, 1, unit_, &most, &entropy);
    const std::int64_t to = partial_row(p_, seq_, row.head, row.token);
    partials_.state_of(to, split_) = state;
    if (partials_.most) partials_.most[to * partials_.splits + split_] = most;
    if (partials_.entropy) partials_.entropy[to * partials_.splits + split_] = entropy;
    std::copy_n(o, p_.dim_v, partials_.out_of(to, split_));
  }
  onepass::RowState<float> state_of(std::int64_t h, std::int64_t first, std::int64_t r) const {
    const std::int64_t group = one_result_ ? first + r : first, lane = one_result_ ? 0 : r;
    return {m_of(h, group)[lane], l_of(h, group)[lane]};
  }
  // 0 where it is not asked for.
  float entropy_of(std::int64_t h, std::int64_t first, std::int64_t r, float l) const {
    if (scratch_.t == nullptr) return 0;
    const std::int64_t group = one_result_ ? first + r : first, lane = one_result_ ? 0 : r;
    return onepass::entropy(l, t_of(h, group)[lane]);
  }
  void epilogue(std::int64_t h) const {
    each_group([&](auto size, std::int64_t first) {
      constexpr int R = size();
      join_sums<R>(h, first);
      const std::int64_t rows = std::min<std::int64_t>(R, rows_ - first);
      for (std::int64_t i = 0; checked_ && i < rows * scratch_.dim_v; ++i) o_of(h, first)[i] += lost_of(h, first)[i];
      DecodeRow row[R];
      describe<R>(h, first, row);
      for (std::int64_t r = 0; r < rows; ++r)
        if (const auto state = state_of(h, first, r); !p_.unified_max || left(h, first + r) != 0)
          put(h, first + r, row[r], state, state.m, entropy_of(h, first, r, state.l));
    });
  }
  // Those rows whose largest score of these keys is near enough to phi, or that see none; false if there are others.
  // Rows that are not finite are not served either, nor are rows where weights below 1 leave too little of a small V.
  bool epilogue_served(std::int64_t h, float phi) const {
    bool all = true;
    each_group([&](auto size, std::int64_t first) {
      constexpr int R = size();
      join_sums<R>(h, first);
      DecodeRow row[R];
      describe<R>(h, first, row);
      for (std::int64_t r = 0; r < std::min<std::int64_t>(R, rows_ - first); ++r) {
        const auto [row_max, l] = state_of(h, first, r);
        const bool served = (row_max == onepass::Arith<float>::neg_inf() || std::abs(row_max - phi) <= kUnifiedRange) &&
                            finite(o_of(h, first + r), scratch_.dim_v) && l - l == 0 &&
                            (row_max >= phi || l == 0 || stands(o_of(h, first + r), scratch_.dim_v));
        left(h, first + r) = served ? 0.0f : 1.0f;
        if (served)
          put(h, first + r, row[r], {phi, l}, row_max, 0);
        else
          all = false;
      }
    });
    return all;
  }
  float& left(std::int64_t h, std::int64_t r) const { return scratch_.left[h * scratch_.padded_rows + r]; }

  static bool finite(const float* x, std::int64_t count) {
    VF probe = hn::Zero(DF());
    for (std::int64_t i = 0; i < count; i += kLanes) probe = probe_finite(probe, hn::Load(DF(), x + i));
    return all_zero(probe);
  }

  // Returns true if underflow is far: numbers below 2^-126 become 0, and 2^22 of them are 2^-24 of 2^-80.
  static bool stands(const float* x, std::int64_t count) {
    VF most = hn::Zero(DF());
    for (std::int64_t i = 0; i < count; i += kLanes) most = hn::Max(most, hn::Abs(hn::Load(DF(), x + i)));
    return hn::GetLane(hn::MaxOfLanes(DF(), most)) >= static_cast<float>(onepass::kLeastWeight);
  }

  static bool fills_vectors(std::int64_t dim) { return dim % kLanes == 0; }
  static std::int64_t vectors(std::int64_t dim) { return round_up(dim, kLanes); }  // whole ones
  template <int R>
  static std::int64_t whole(std::int64_t keys) {
    return round_up(keys, kLanes / R);
  }
  ChunkScores chunk_scores() const {
    return {p_, a_, params_, band_, batch_, scratch_.mods, !one_result_ || unit_.products};
  }

  const Problem& p_;
  const Tensors& a_;
  const DecodeCut& cut_;
  const Partials& partials_;
  const DecodeScratch& scratch_;
  const ScoreParams& params_;
  const ScoreUnit unit_;
  const bool one_result_;
  Sequence seq_;
  BandMask band_;
  std::int64_t batch_ = 0, head_lo_ = 0, heads_ = 0, split_ = 0, rows_ = 0;
  Range keys_, unmasked_;
  ChunkTiles tiles_;
  bool features_ = false, checked_ = false;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
