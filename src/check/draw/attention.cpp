#include "check/draw/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "algebra/numerics.hpp"
#include "check/draw/cache.hpp"
#include "check/draw/factors.hpp"
#include "check/draw/random.hpp"
#include "check/draw/side.hpp"
#include "problem/attention/key_value_view.hpp"
#include "problem/attention/score.hpp"
#include "problem/roles.hpp"

namespace onepass::check {
namespace {

enum Stream : std::int64_t {
  kQ,
  kK,
  kV,
  kDOut = 6,
  kDLse,
  kTQ = 120,
  kTK,
  kTV,
  kTBias,
  kTSinks,
  kTDOut,
  kTDLse,
  kDropoutSeed,
  kDEntropy
};

// The sequence's rows of queries as a view.
KeyValueView rows_of(const ConstTensor& t, const Sequence& seq) {
  Sequence s;
  s.batch = seq.batch;
  s.k_begin = seq.q_begin;
  return {t, s};
}
// make(head, row of the sequence, values)
template <class Make>
void fill_rows(const ConstTensor& t, const KeyValueView& view, std::int64_t heads, std::int64_t count, bool paged,
               Make make, const Descale& factors = {}) {
  const std::int64_t dim = t.shape[t.rank - 1];
  std::vector<float> row(static_cast<std::size_t>(dim));
  with_float_type(t.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t h = 0; h < heads; ++h) {
      // Rows at the same address are written once: 3 billion broadcast keys cost nothing.
      for (std::int64_t i = row_stride(t) == 0 && !paged ? std::max<std::int64_t>(0, count - 1) : 0; i < count; ++i) {
        make(h, i, row.data());
        T* into = const_cast<T*>(view.row<T>(h, i));
        const float factor = factors.at(h, i);
        for (std::int64_t d = 0; d < dim; ++d) into[d] = from_float<T>(row[d] / factor);
      }
    }
  });
}

// The queries and keys of one sequence.
class Scores {
 public:
  Scores(const Problem& p, const Sequence& seq, std::int64_t entry, std::uint64_t seed, Distribution distribution)
      : p_(p), seq_(seq), b_(entry), seed_(seed), distribution_(distribution) {}

  void key(std::int64_t h, std::int64_t j, float* row) const {
    const Random r(seed_, {kK, b_, h, j});
    switch (distribution_) {
      case Distribution::normal: return normals(r, sigma(4), row);
      case Distribution::huge: return normals(r, p_.key_dtype() == DType::f8e4m3 ? 100.0f : sigma(3e4f), row);
      case Distribution::one_hot: return normals(r, 1, row);
      case Distribution::rising:
        normals(r, sigma(1), row);
        row[0] = static_cast<float>(h % 2 == 0 ? j : seq_.seq_k - j) * rise();
    }
  }
  void query(std::int64_t h, std::int64_t i, float* row) const {
    const Random r(seed_, {kQ, b_, h, i});
    switch (distribution_) {
      case Distribution::normal: return normals(r, sigma(4), row);
      case Distribution::huge: return normals(r, huge_sigma(i), row);
      case Distribution::one_hot: return meet(Random(seed_, {kK, b_, h / p_.group(), target(h, i)}), row);
      case Distribution::rising: normals(r, sigma(1), row); row[0] = unscale();
    }
  }

 private:
  // Factor of q that turns q . k into a score (1 if the problem's scale is 0). Scales below 1e-4 make smaller scores:
  // q must fit into fp16, and q . k into fp32.
  float unscale() const {
    const double scale = p_.effective_scale();
    return static_cast<float>(scale == 0 ? 1.0 : std::clamp(1.0 / scale, -1e4, 1e4));
  }
  // q and k of standard deviation `sigma` each make scores of standard deviation `std`.
  float sigma(float std) const {
    return std::sqrt(std * std::abs(unscale()) / std::sqrt(static_cast<float>(p_.dim_qk)));
  }
  // The step of rising scores from key to key. 16-bit types store scores above 40 too coarsely to judge by.
  float rise() const {
    constexpr float kRise = 2.5f / 64;
    return p_.key_dtype() == DType::f32
               ? kRise
               : std::min(kRise, 40 / static_cast<float>(std::max<std::int64_t>(1, seq_.seq_k)));
  }
  // Huge queries: neighbouring rows of different magnitudes. fp16 holds at most 65504.
  float huge_sigma(std::int64_t i) const {
    constexpr float kMore[] = {1, 1e4f, 1e9f, 1e17f, 1e26f};
    const float least = sigma(3e4f), most = least * kMore[i % 5];
    if (p_.dtype == DType::f8e4m3) return std::min(least, 100.0f);  // at most 448
    return p_.dtype == DType::f16 ? std::max(least, std::min(most, 1e4f)) : most;
  }
  void normals(Random r, float std, float* row) const {
    for (std::int64_t d = 0; d < p_.dim_qk; ++d) row[d] = std * r.normal();
  }
  // A query that scores 30 with the key of stream r.
  void meet(Random r, float* row) const {
    normals(r, 1, row);
    float square = 0;
    for (std::int64_t d = 0; d < p_.dim_qk; ++d) square += row[d] * row[d];
    for (std::int64_t d = 0; d < p_.dim_qk; ++d) row[d] *= 30 * unscale() / square;
  }
  // Any key that the band lets row i see, if there is one.
  std::int64_t target(std::int64_t h, std::int64_t i) const {
    const Range seen = band_mask(p_, seq_.seq_q, seq_.seq_k).keys_of(i);
    return seen.lo < seen.hi ? seen.lo + Random(seed_, {kQ, b_, h, i}).below(seen.hi - seen.lo) : 0;
  }

  const Problem& p_;
  const Sequence seq_;
  const std::int64_t b_;
  const std::uint64_t seed_;
  const Distribution distribution_;
};

// The rows and keys of a sequence that the tree or the block mask hides as a whole. Their elements stay NaN.
class Unseen {
 public:
  Unseen(const Problem& p, const Tensors& t, const Sequence& seq, std::int64_t entry)
      : p_(p), seq_(seq), entry_(entry), tiles_(score_params(p, t).tiles) {
    if (p.drafts == 0) return;
    const DraftTree tree = score_params(p, t).tree_of(entry);
    all_.first = seq.seq_k - p.drafts, all_.seen = 0;
    for (std::int64_t i = 0; i < seq.seq_q; ++i)
      all_.seen |= TreeRow<std::int64_t>::of(tree, seq.seq_q, seq.seq_k, i).seen;
  }
  bool key(std::int64_t head_kv, std::int64_t j) const {
    if (!all_.sees(j)) return true;
    if (!tiles_.states.given() || p_.fp8) return false;  // scales of a quantized tensor count all of its rows
    for (std::int64_t h = head_kv * p_.group(); h < (head_kv + 1) * p_.group(); ++h)
      for (std::int64_t i = 0; i < seq_.seq_q; i += tiles_.rows)
        if (tiles_.of(entry_, h, i, j) != TileStates::empty) return false;
    return true;
  }
  bool row(std::int64_t head, std::int64_t i) const {
    if (!tiles_.states.given() || p_.fp8) return false;
    for (std::int64_t j = 0; j < seq_.seq_k; j += tiles_.keys)
      if (tiles_.of(entry_, head, i, j) != TileStates::empty) return false;
    return true;
  }

 private:
  const Problem& p_;
  const Sequence& seq_;
  const std::int64_t entry_;
  const TileStates tiles_;
  TreeRow<std::int64_t> all_{std::numeric_limits<std::int64_t>::max(), 0};
};

void fill_nan(float* row, std::int64_t dim) { std::fill_n(row, dim, std::numeric_limits<float>::quiet_NaN()); }

// Lengths, pages, trees, block masks and scales are drawn before.
void draw_rows(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence_of(p, t, b);
    const Scores scores(p, seq, b, seed, distribution);
    const Unseen unseen(p, t, seq, b);
    const auto hide = [&](std::int64_t h, std::int64_t j, float* row, std::int64_t dim) {
      if (unseen.key(h, j)) fill_nan(row, dim);
    };
    fill_rows(
        t.q, rows_of(t.q, seq), p.heads_q, seq.seq_q, p.paged(),
        [&](std::int64_t h, std::int64_t i, float* row) {
          scores.query(h, i, row);
          if (unseen.row(h, i)) fill_nan(row, p.dim_qk);
        },
        Descale(t.q_descale, b));
    fill_rows(
        t.k, keys_of(t, seq), p.heads_kv, seq.seq_k, p.paged(),
        [&](std::int64_t h, std::int64_t j, float* row) { scores.key(h, j, row), hide(h, j, row, p.dim_qk); },
        Descale(t.k_descale, b));
    if (p.v_in_k) continue;
    fill_rows(
        t.v, values_of(t, seq), p.heads_kv, seq.seq_k, p.paged(),
        [&](std::int64_t h, std::int64_t j, float* row) {
          Random r(seed, {kV, b, h, j});
          for (std::int64_t d = 0; d < p.dim_v; ++d) row[d] = 0.5f + r.normal();
          hide(h, j, row, p.dim_v);
        },
        Descale(t.v_descale, b));
  }
}

// N(0, 1): dout and a gradient of numbers of rows, such as dlse, or their tangents.
void draw_upstream(const Problem& p, const Tensors& t, std::uint64_t seed, const ConstTensor& dout,
                   const ConstTensor& dlse, Stream of_dout, Stream of_dlse) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence_of(p, t, b);
    const Unseen unseen(p, t, seq, b);
    if (dout.given())
      fill_rows(dout, rows_of(dout, seq), p.heads_q, seq.seq_q, p.paged(),
                [&](std::int64_t h, std::int64_t i, float* row) {
                  Random r(seed, {of_dout, b, h, i});
                  for (std::int64_t d = 0; d < p.dim_v; ++d) row[d] = r.normal();
                  if (unseen.row(h, i)) fill_nan(row, p.dim_v);
                });
    for (std::int64_t h = 0; dlse.given() && h < p.heads_q; ++h)
      for (std::int64_t i = 0; i < seq.seq_q; ++i)
        Inputs::writable<float>(dlse)[lse_offset(dlse, seq.batch, h, seq.q_begin + i)] =
            Random(seed, {of_dlse, b, h, i}).normal();
  }
}

// Tangents of the rows of one sequence.
void draw_row_tangents(const Problem& p, const Tensors& t, std::uint64_t seed, std::int64_t b) {
  const Sequence seq = sequence_of(p, t, b);
  const Unseen unseen(p, t, seq, b);
  const auto draw = [&](const ConstTensor& tensor, const KeyValueView& view, Stream stream, std::int64_t heads,
                        std::int64_t count, auto hidden) {
    const std::int64_t dim = tensor.shape[tensor.rank - 1];
    fill_rows(tensor, view, heads, count, false, [&](std::int64_t h, std::int64_t i, float* row) {
      Random r(seed, {stream, b, h, i});
      for (std::int64_t d = 0; d < dim; ++d) row[d] = r.normal();
      if (hidden(h, i)) fill_nan(row, dim);
    });
  };
  const auto row = [&](std::int64_t h, std::int64_t i) { return unseen.row(h, i); };
  const auto key = [&](std::int64_t h, std::int64_t j) { return unseen.key(h, j); };
  draw(t.tq, rows_of(t.tq, seq), kTQ, p.heads_q, seq.seq_q, row);
  draw(t.tk, KeyValueView(t.tk, seq), kTK, p.heads_kv, seq.seq_k, key);
  draw(t.tv, KeyValueView(t.tv, seq), kTV, p.heads_kv, seq.seq_k, key);
}

// tensor[at] for all of its elements, and the same element of `beside`: f(at, at in `beside`).
template <class F>
void each_element(const ConstTensor& t, const ConstTensor& beside, F f) {
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    std::int64_t at = 0, other = 0, rest = i;
    for (int d = t.rank - 1; d >= 0; rest /= t.shape[d--])
      at += rest % t.shape[d] * t.stride[d], other += rest % t.shape[d] * beside.stride[d];
    f(at, other);
  }
}

}  // namespace

void draw_forward(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  draw_lengths_and_pages(p, t, seed);
  for (const Role role : {Role::q_descale, Role::k_descale, Role::v_descale})
    draw_descale(tensor_of(t, row_of(role)), role, seed);
  if (p.block_mask) draw_block_mask(t.block_mask, seed);
  draw_rows(p, t, seed, distribution);
  if (p.v_mean) draw_mean(t.v_mean, seed);
  if (p.bias) draw_bias(t.bias, seed);
  if (p.alibi) draw_slopes(t.alibi_slopes, p.heads_q);
  if (p.sinks) draw_sinks(t.sinks, seed);
  if (p.dropout_seed) Inputs::writable<std::uint64_t>(t.dropout_seed)[0] = Random(seed, {kDropoutSeed}).bits();
  for (std::size_t i = 0; i < t.mod_buffers.size(); ++i)
    draw_mod_buffer(t.mod_buffers[i].tensor, static_cast<std::int64_t>(i), seed);
}

void draw_backward(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  draw_forward(p, t, seed, distribution);
  draw_upstream(p, t, seed, t.dout, t.dlse, kDOut, kDLse);
  draw_upstream(p, t, seed, {}, t.dentropy, kDOut, kDEntropy);
}

void draw_backward_jvp(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  draw_tangents(p, t, seed, distribution);
  draw_upstream(p, t, seed, t.dout, t.dlse, kDOut, kDLse);
  draw_upstream(p, t, seed, t.tdout, t.tdlse, kTDOut, kTDLse);
}

void draw_tangents(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  draw_forward(p, t, seed, distribution);
  for (std::int64_t b = 0; b < p.batch; ++b) draw_row_tangents(p, t, seed, b);
  Random bias(seed, {kTBias}), sinks(seed, {kTSinks});
  if (p.tbias)
    each_element(t.tbias, t.bias, [&](std::int64_t at, std::int64_t of) {
      const bool hidden = load_element(t.bias.data, t.bias.dtype, of) == -INFINITY;
      store_element(const_cast<void*>(t.tbias.data), t.tbias.dtype, at, hidden ? NAN : bias.normal());
    });
  if (p.tsinks)
    for (std::int64_t h = 0; h < p.heads_q; ++h)
      Inputs::writable<float>(t.tsinks)[h * t.tsinks.stride[0]] = sinks.normal();
}

}  // namespace onepass::check
