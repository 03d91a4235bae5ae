// What happens to the scores of a chunk between the dot products and the softmax, and to its weights after it: softcap,
// ALiBi, bias, score_mod, masks and dropout, in the order and units of docs/conventions.md. A plain causal or unmasked
// decoding step comes here at most once per row, for its last chunk.
#if defined(ONEPASS_CPU_DECODE_SCORES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_SCORES_INL_H
#undef ONEPASS_CPU_DECODE_SCORES_INL_H
#else
#define ONEPASS_CPU_DECODE_SCORES_INL_H
#endif

#include <algorithm>

#include "core/arguments.hpp"
#include "cpu/common/mods-inl.h"
#include "cpu/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// One query row of a row group: its token in the sequence, its query head and the keys its band lets it see.
struct DecodeRow {
  std::int64_t token = 0, head = 0;
  Range keys;
};

// The keys [at, at + count) of one sequence.
struct DecodeChunk {
  std::int64_t at = 0;
  int count = 0;
  int padded = 0;  // scores that exist: count rounded up to whole vectors
};

struct DecodeScores {
  const Problem& p;
  const Arguments& a;
  BandMask band;
  std::int64_t batch = 0;
  const Mods& mods;
  ExprMemory<float> memory;

  bool any() const { return p.softcap > 0 || p.alibi || p.bias || p.bool_mask || mods.given(); }

  // What q is multiplied by: with it, a dot product is the score, or the argument of softcap's tanh.
  static float q_scale(const Problem& p) {
    return static_cast<float>(p.softcap > 0 ? p.effective_scale() / p.softcap : p.effective_scale());
  }

  // scores: [key][R]; -inf where a row does not see a key. extra: as large as scores.
  template <int R>
  HWY_NOINLINE void adjust(const DecodeRow* rows, const DecodeChunk& c, float* scores, float* extra) const {
    if (p.softcap > 0) cap(c.padded * R, scores);
    if (p.bias) add_bias<R>(rows, c, scores, extra);
    if (p.alibi) add_alibi<R>(rows, c, scores);
    if (mods.given()) {
      std::int32_t head[R], token[R];
      for (int r = 0; r < R; ++r) {
        head[r] = static_cast<std::int32_t>(rows[r].head);
        token[r] = static_cast<std::int32_t>(rows[r].token);
      }
      const ExprTile<float> tile{scores, R, R, c.count, static_cast<std::int32_t>(batch), c.at, head, token};
      if (mods.score.given()) change_scores(mods.score, a, memory, tile);
      if (mods.mask.given()) hide(mods.mask, a, memory, tile, onepass::Arith<float>::neg_inf());
    }
    if (p.bool_mask) apply_bool_mask<R>(rows, c, scores);
    for (int r = 0; r < R; ++r) {
      const std::int64_t lo = std::clamp<std::int64_t>(rows[r].keys.lo - c.at, 0, c.count);
      const std::int64_t hi = std::clamp<std::int64_t>(rows[r].keys.hi - c.at, lo, c.count);
      for (std::int64_t j = 0; j < lo; ++j) scores[j * R + r] = onepass::Arith<float>::neg_inf();
      for (std::int64_t j = hi; j < c.padded; ++j) scores[j * R + r] = onepass::Arith<float>::neg_inf();
    }
  }

  // Dropped weights become 0, kept ones grow; their sum was taken before.
  template <int R>
  HWY_NOINLINE void drop(const DecodeRow* rows, const DecodeChunk& c, float* weights) const {
    const Dropout dropout = Dropout::of(p.dropout_p, p.seed);
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < c.count;) {
        const auto column = static_cast<unsigned>(c.at + j);
        const PhiloxBlock draws = dropout.draws(static_cast<unsigned>(batch), static_cast<unsigned>(rows[r].head),
                                                static_cast<unsigned>(rows[r].token), column / 4);
        for (unsigned word = column % 4; word < 4 && j < c.count; ++word, ++j) {
          weights[j * R + r] *= dropout.kept(draws.word[word]) ? dropout.keep_scale : 0.0f;
        }
      }
    }
  }

 private:
  void cap(int count, float* scores) const {
    const VF size = splat(p.softcap);
    for (int i = 0; i < count; i += kLanes) hn::Store(size * tanh_of(hn::Load(DF(), scores + i)), DF(), scores + i);
  }

  template <int R>
  void add_bias(const DecodeRow* rows, const DecodeChunk& c, float* scores, float* extra) const {
    const Dims s = broadcast_strides(a.bias);
    with_float_type(a.bias.dtype, [&](auto zero) {
      for (int r = 0; r < R; ++r) {
        const auto* from = static_cast<const decltype(zero)*>(a.bias.data) + batch * s[0] + rows[r].head * s[1] +
                           rows[r].token * s[2] + c.at * s[3];
        for (int j = 0; j < c.padded; ++j) extra[j * R + r] = j < c.count ? to_float(from[j * s[3]]) : 0.0f;
      }
    });
    for (int i = 0; i < c.padded * R; i += kLanes)
      hn::Store(hn::Load(DF(), scores + i) + hn::Load(DF(), extra + i), DF(), scores + i);
  }

  // -slope * |aligned row - key|; distances from the chunk's first key are exact in fp32.
  template <int R>
  void add_alibi(const DecodeRow* rows, const DecodeChunk& c, float* scores) const {
    HWY_ALIGN float slope[kLanes], distance[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const DecodeRow& row = rows[i % R];
      const ConstTensor& t = a.alibi_slopes;
      const std::int64_t from = t.rank == 2 ? batch * t.stride[0] + row.head * t.stride[1] : row.head * t.stride[0];
      slope[i] = static_cast<const float*>(t.data)[from];
      distance[i] = static_cast<float>(row.token + band.shift - c.at - i / R);
    }
    VF at = hn::Load(DF(), distance);
    for (int i = 0; i < c.padded * R; i += kLanes) {
      hn::Store(hn::NegMulAdd(hn::Load(DF(), slope), hn::Abs(at), hn::Load(DF(), scores + i)), DF(), scores + i);
      at = at - splat(static_cast<float>(kLanes / R));
    }
  }

  template <int R>
  void apply_bool_mask(const DecodeRow* rows, const DecodeChunk& c, float* scores) const {
    const Dims s = broadcast_strides(a.bool_mask);
    for (int r = 0; r < R; ++r) {
      const auto* from = static_cast<const std::uint8_t*>(a.bool_mask.data) + batch * s[0] + rows[r].head * s[1] +
                         rows[r].token * s[2] + c.at * s[3];
      for (int j = 0; j < c.count; ++j) {
        if (from[j * s[3]] == 0) scores[j * R + r] = onepass::Arith<float>::neg_inf();
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
