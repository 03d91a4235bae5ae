// The steps of a chunk between the dot products and the softmax, and the steps of its weights after it: softcap,
// ALiBi, bias, score_mod, masks and dropout, in the order and units of docs/reference/conventions.md. A plain causal or
// unmasked decoding step comes here at most once per row, for its last chunk.
#if defined(ONEPASS_CPU_DECODE_SCORES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_SCORES_INL_H
#undef ONEPASS_CPU_DECODE_SCORES_INL_H
#else
#define ONEPASS_CPU_DECODE_SCORES_INL_H
#endif

#include <algorithm>
#include <cmath>

#include "cpu/common/mods-inl.h"
#include "cpu/common/simd-inl.h"
#include "problem/attention/score.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// One query row of a row group: its token in the sequence, its query head and the keys its band shows.
struct DecodeRow {
  std::int64_t token = 0, head = 0;
  Range keys;
};

// The keys [at, at + count) of one sequence.
struct DecodeChunk {
  std::int64_t at = 0;
  int count = 0;
  int padded = 0;              // scores that exist: count rounded up to whole vectors
  Tile shown = Tile::partial;  // how a mask_mod shows it
};

// The factor of q by which a dot product is the score, or the argument of softcap's tanh; for one result per row the
// sign of the scale.
inline float q_scale(const Problem& p) {
  if (p.batch_invariant) return p.effective_scale() > 0 ? 1.0f : p.effective_scale() < 0 ? -1.0f : 0.0f;
  return static_cast<float>(p.softcap > 0 ? p.effective_scale() / p.softcap : p.effective_scale());
}

struct ChunkScores {
  const Problem& p;
  const Tensors& a;
  const ScoreParams& params;
  BandMask band;
  std::int64_t batch = 0;
  ExprMemory<float> memory;
  bool scaled = true;  // scores have their scale; else they get it here

  // scores: [key][R]; -inf where a key is hidden from a row. extra: as large as scores.
  template <int R>
  HWY_NOINLINE void apply(const DecodeRow* rows, const DecodeChunk& c, float* scores, float* extra) const {
    if (!scaled || params.softcap > 0 || params.bias.given() || params.slopes) transform<R>(rows, c, scores, extra);
    if (params.mods) modify<R>(rows, c, scores);
    hide_keys<R>(rows, c, scores, extra);
  }

  // Dropped weights become 0, kept ones grow; their sum was taken before. visible, if not null: changes its sign where
  // a weight is dropped.
  template <int R>
  HWY_NOINLINE void drop(const DecodeRow* rows, const DecodeChunk& c, float* weights, float* visible) const {
    const Dropout dropout = dropout_of(p, a);
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < c.count;) {
        const auto column = static_cast<unsigned>(c.at + j);
        const PhiloxBlock draws = dropout.draws(static_cast<unsigned>(batch), static_cast<unsigned>(rows[r].head),
                                                static_cast<unsigned>(rows[r].token), column / 4);
        for (unsigned word = column % 4; word < 4 && j < c.count; ++word, ++j) {
          const bool kept = dropout.kept(draws.word[word]);
          weights[j * R + r] *= kept ? dropout.keep_scale : 0.0f;
          if (visible && !kept) visible[j * R + r] = -visible[j * R + r];
        }
      }
    }
  }

 private:
  template <int R>
  void transform(const DecodeRow* rows, const DecodeChunk& c, float* scores, float* extra) const {
    const bool biased = params.bias.given(), alibi = params.slopes != nullptr;
    if (biased) {
      with_float_type(params.bias.dtype, [&](auto zero) {
        fetch<decltype(zero), R>(params.bias, rows, c, extra, [](auto x) { return to_float(x); });
      });
    }
    HWY_ALIGN float slope[kLanes] = {}, distance[kLanes] = {};  // distances from the chunk's first keys
    HWY_ALIGN std::int32_t whole[kLanes] = {};
    for (int i = 0; alibi && i < kLanes; ++i) {
      const DecodeRow& row = rows[i % R];
      const std::int64_t from = row.token + band.shift - c.at - i / R;
      slope[i] = params.slope(batch, row.head);
      distance[i] = static_cast<float>(from);
      whole[i] = static_cast<std::int32_t>(from);
    }
    // The magnitude of the scale alone: q holds its sign.
    const auto chain =
        scaled ? ScoreChain<VF>::of_scaled(params.softcap, biased, alibi)
               : ScoreChain<VF>::of(std::abs(static_cast<float>(params.scale)), params.softcap, biased, alibi);
    const VF slopes = hn::Load(DF(), slope);
    VF at = hn::Load(DF(), distance);
    VI whole_at = hn::Load(DI(), whole);  // each rounded by itself, as in cpu.flash
    for (int i = 0; i < c.padded * R; i += kLanes) {
      const VF s = hn::Load(DF(), scores + i), bias = biased ? hn::Load(DF(), extra + i) : s;
      hn::Store(chain.transform(s, bias, slopes, scaled ? at : hn::ConvertTo(DF(), whole_at)), DF(), scores + i);
      at = at - splat(static_cast<float>(kLanes / R));
      whole_at = whole_at - hn::Set(DI(), kLanes / R);
    }
  }

  template <int R>
  void modify(const DecodeRow* rows, const DecodeChunk& c, float* scores) const {
    std::int32_t head[R], token[R];
    for (int r = 0; r < R; ++r) {
      head[r] = static_cast<std::int32_t>(rows[r].head);
      token[r] = static_cast<std::int32_t>(rows[r].token);
    }
    const ExprTile<float> tile{scores, R, R, c.count, static_cast<std::int32_t>(batch), c.at, head, token};
    if (params.mods->score.given()) change_scores(params.mods->score, a, memory, tile);
    if (params.mods->mask.given() && c.shown != Tile::full)
      hide(params.mods->mask, a, memory, tile, onepass::Arith<float>::neg_inf());
  }

  // By the boolean mask, the tree, and what the band leaves of the chunk; what lies beyond the last key is hidden too.
  template <int R>
  void hide_keys(const DecodeRow* rows, const DecodeChunk& c, float* scores, float* extra) const {
    const bool masked = params.mask.given();
    if (masked)
      fetch<std::uint8_t, R>(params.mask, rows, c, extra, [](std::uint8_t x) { return x != 0 ? 1.0f : 0.0f; });
    HWY_ALIGN std::int32_t key[kLanes], from[kLanes], to[kLanes];  // from the chunk's first key on
    for (int i = 0; i < kLanes; ++i) {
      const Range visible = rows[i % R].keys;
      key[i] = i / R;
      from[i] = static_cast<std::int32_t>(std::clamp<std::int64_t>(visible.lo - c.at, 0, c.count));
      to[i] = static_cast<std::int32_t>(std::clamp<std::int64_t>(visible.hi - c.at, 0, c.count));
    }
    const VI lo = hn::Load(DI(), from), hi = hn::Load(DI(), to);
    VI at = hn::Load(DI(), key);
    for (int i = 0; i < c.padded * R; i += kLanes) {
      VF s = hn::Load(DF(), scores + i);
      if (masked) s = hide_by_mask(s, hn::Load(DF(), extra + i));
      hn::Store(hide_by_band(s, at, lo, hi), DF(), scores + i);
      at = at + hn::Set(DI(), kLanes / R);
    }
    if (params.tree.given()) hide_by_tree<R>(rows, c, scores);
  }
  template <int R>
  void hide_by_tree(const DecodeRow* rows, const DecodeChunk& c, float* scores) const {
    const DraftTree tree = params.tree_of(batch);
    for (int r = 0; r < R; ++r) {
      const auto row = TreeRow<std::int64_t>::of(tree, band.seq_q, band.seq_k, rows[r].token);
      for (std::int64_t k = std::max(c.at, row.first); k < c.at + c.count; ++k)
        if (!row.sees(k)) scores[(k - c.at) * R + r] = onepass::Arith<float>::neg_inf();
    }
  }

  // extra = the chunk's part of a bias or mask, 0 beyond the last key.
  template <class T, int R, class Number>
  void fetch(const SideTensor& t, const DecodeRow* rows, const DecodeChunk& c, float* extra, Number number) const {
    for (int r = 0; r < R; ++r) {
      const T* from = static_cast<const T*>(t.data) + t.row(batch, rows[r].head, rows[r].token) + c.at * t.key_stride();
      for (int j = 0; j < c.padded; ++j) extra[j * R + r] = j < c.count ? number(from[j * t.key_stride()]) : 0.0f;
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
