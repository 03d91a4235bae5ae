// The end of a tile: sinks, LSE, the normalised O, and what is remembered of rows that came out not finite.
#pragma once
#include "cuda/attention/softmax.cuh"

#include "cuda/attention/forward.hpp"
#include "cuda/attention/scores/scores.cuh"

// The type of the parameters, which has `entropy` and `entropy_stride`, of a kernel that computes entropies.
#if !defined(ONEPASS_ENTROPY_PARAMS)
#define ONEPASS_ENTROPY_PARAMS EntropyParams
#endif

namespace onepass {

DEV void write_out(const ForwardParams& p, i64 at, float value) {
  using Format = ElementOf<forward_features.output>::Format;
  static_cast<Format::Raw*>(p.out)[at] = Format::round(value);
}

DEV i64 lse_offset(const ForwardParams& p, const WorkTile& x, i32 row) {
  return x.map_batch * p.lse_stride[0] + x.head * p.lse_stride[1] + static_cast<i64>(x.q_begin + row) * p.lse_stride[2];
}
DEV void write_lse(const ForwardParams& p, const WorkTile& x, i32 row, float lse) {
  if (p.lse && row < x.seq_q) p.lse[lse_offset(p, x, row)] = lse;
}
// most: the row's largest score, in natural units.
DEV void write_row_max(const ForwardParams& p, const WorkTile& x, i32 row, float most) {
  if constexpr (forward_features.row_max) {
    const i64 at = x.map_batch * p.row_max_stride[0] + x.head * p.row_max_stride[1] +
                   static_cast<i64>(x.q_begin + row) * p.row_max_stride[2];
    if (row < x.seq_q) p.row_max[at] = most;
  }
}
DEV void write_entropy(const ForwardParams& params, const WorkTile& x, i32 row, float entropy) {
  if constexpr (forward_features.entropy) {
    const auto& p = static_cast<const ONEPASS_ENTROPY_PARAMS&>(params);
    const i64 at = x.map_batch * p.entropy_stride[0] + x.head * p.entropy_stride[1] +
                   static_cast<i64>(x.q_begin + row) * p.entropy_stride[2];
    if (row < x.seq_q) p.entropy[at] = entropy < 0.0f ? 0.0f : entropy;  // keeps a NaN
  }
}
DEV i64 out_offset(const ForwardParams& p, const WorkTile& x, i32 row) {
  return x.map_batch * p.out_stride[0] + x.head * p.out_stride[1] + static_cast<i64>(x.q_begin + row) * p.out_stride[2];
}
// A tile that sees no key: O = 0, LSE = -inf or the sink. Called by one whole warp for `count` rows from `first` on.
DEV void write_empty(const ForwardParams& p, const WorkTile& x, i32 first, i32 count) {
  const i32 lane = opaque_thread() % 32;
  const float lse = forward_features.sinks ? p.sinks[x.head * p.sink_stride] : kNegInf;
  for (i32 row = first; row < min(first + count, x.seq_q); ++row) {
    for (i32 d = lane; d < features.dim_v; d += 32) write_out(p, out_offset(p, x, row) + d, 0.0f);
    if (lane == 0) write_lse(p, x, row, lse), write_row_max(p, x, row, kNegInf), write_entropy(p, x, row, 0.0f);
  }
}

// An fp32 output shows the rounding of 16-bit weights; see LaneRows.
constexpr bool kRoundedSums = forward_features.rounded_sums;

// A row whose 1 / l is NaN sees a score that is NaN or infinite: it is NaN in every column, no hidden key has a part in
// that, and it is right. A hidden key may have a part where neighbours share a tanh, where a factor of e4m3 is NaN, and
// with fp32, whose products of parts make NaN of an infinity.
DEV bool is_rightly_lost(float inv) { return bytes_of(features.keys) == 2 && !features.pair_tanh && inv != inv; }

// O / l; false if that is somewhere not finite in a row that is not rightly lost.
template <class Out, int N>
DEV bool scale_rows(float (&o)[N], const float (&inv)[2]) {
  constexpr u32 kBits = sizeof(typename Out::Raw) == 4 ? 0x7fffffff : 0x7fff7fff;
  u32 zero[2] = {0, 0};  // of the rows: stay 0 while everything is finite
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    const int i = j >> 1 & 1;
    o[j] *= inv[i];
    o[j + 1] *= inv[i];
    if constexpr (sizeof(typename Out::Raw) == 4)
      zero[i] = __float_as_uint(fmaf(o[j + 1], 0.0f, fmaf(o[j], 0.0f, __uint_as_float(zero[i]))));
    else  // packed pairs are wanted anyway: half the instructions
      zero[i] = Out::times_zero_plus(Out::pack(o[j], o[j + 1]), zero[i]);
  }
  const auto wrong = [&](int i) { return (zero[i] & kBits) != 0 && !is_rightly_lost(inv[i]); };
  return !wrong(0) && !wrong(1);
}

// A row's state in natural units takes the head's sink in. Returns the share of the keys beside it.
DEV float join_sink(const ForwardParams& p, i32 head, RowState<float>& state) {
  const Merged<float> joined = join_natural_sink(state, p.sinks[head * p.sink_stride]);
  state = joined.state;
  return joined.alpha_a;
}
// The entropy of a row's keys, whose state is in natural units, with that of the head's sink.
DEV float entropy_with_sink(const ForwardParams& p, i32 head, const RowState<float>& state, float entropy) {
  if constexpr (!forward_features.sinks) return entropy;
  return joined_entropy(entropy, state.l, 0.0f, 1.0f, join_natural_sink(state, p.sinks[head * p.sink_stride]));
}
// From the states of some keys in each lane of a warp to that of all of them.
DEV void merge_lanes(RowState<float>& state, float scale) {
#pragma unroll 1
  for (i32 step = 16; step > 0; step /= 2) {
    const RowState<float> other = {__shfl_xor_sync(0xffffffffu, state.m, step),
                                   __shfl_xor_sync(0xffffffffu, state.l, step)};
    state = merge(state, other, scale).state;
  }
}

// The final state of a row: 1 / l and the LSE. rounded: the sum of the weights as they were multiplied.
struct FinalRow {
  float inv, lse;
  float share;  // of the keys beside the sink, 0 of a row that sees none
};
DEV FinalRow finalize_row(const ForwardParams& p, i32 head, RowState<float> state, float rounded) {
  const auto unit = unit_of(p);
  state = unit.lifted(state);
  Final<float> last = unit.final(state);
  const float rounding = kRoundedSums ? rounded / kLowUnit - state.l : 0.0f;
  const float own = state.l;
  float alpha = 1.0f;
  if constexpr (forward_features.sinks) {
    const Merged<float> joined = join_natural_sink(unit.natural(state), p.sinks[head * p.sink_stride]);
    state = joined.state;
    alpha = joined.alpha_a;
    last = finalize_natural(state);
  }
  FinalRow end;
  end.share = own * alpha * last.inv_l;
  end.inv = kRoundedSums && last.inv_l != 0.0f ? alpha * rcp(state.l + alpha * rounding) : alpha * last.inv_l;
  end.inv /= kLowUnit;
  if constexpr (features.dropout) end.inv *= p.dropout.keep_scale;
  end.lse = last.lse;
  return end;
}
// The largest scores and the entropies of a lane's two rows; nothing where they are not asked for.
template <bool kAsked>
struct RowMaxima {
  DEV void put(int, float) {}
  DEV float row_max(int) const { return kNegInf; }
};
template <>
struct RowMaxima<true> {
  float of[2];
  DEV void put(int i, float most) { of[i] = most; }
  DEV float row_max(int i) const { return of[i]; }
};
template <bool kAsked>
struct RowEntropies {
  DEV void put_entropy(int, float) {}
  DEV float entropy(int) const { return 0.0f; }
};
template <>
struct RowEntropies<true> {
  float entropies[2];
  DEV void put_entropy(int i, float entropy) { entropies[i] = entropy; }
  DEV float entropy(int i) const { return entropies[i]; }
};
// The final states of a lane's two rows. They do not need O, so the last P V may still be in flight.
struct FinalRows : RowMaxima<forward_features.row_max>, RowEntropies<forward_features.entropy> {
  float inv[2], lse[2], share[2];
  bool right = true;  // else the rows are to be computed again
};

// Rows whose result is not finite, remembered until the end of the warp's work: a chain through the workspace, which
// has a place for each warp of each tile.
struct FallbackRows {
  i32 last = -1;
  DEV void push(const ForwardParams& p, const WorkTile& x, i32 first_row, i32 place) {  // sixteen rows of one warp
    if (opaque_thread() % 32 == 0) p.fallback[place] = {x.batch, x.head, first_row, last};
    last = place;
  }
};
// True if a row's state is not that of the keys that it sees.
DEV bool is_wrong(const FinalRows& end) {
  if constexpr (bytes_of(features.keys) == 2 && !features.pair_tanh) return !end.right;
  return !end.right || end.inv[0] != end.inv[0] || end.inv[1] != end.inv[1];
}
DEV FinalRows finalize_rows(const ForwardParams& p, const WorkTile& x, const LaneRows& sums) {
  FinalRows end;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const RowState<float> state = {sums.state[i].m, quad_sum(sums.state[i].l)};
    const FinalRow row = finalize_row(p, x.head, state, kRoundedSums ? quad_sum(sums.norm[i]) : 0.0f);
    end.right = end.right && (unit_of(p).right(state) || is_rightly_lost(row.inv));
    end.inv[i] = row.inv, end.lse[i] = row.lse, end.share[i] = row.share;
    if constexpr (forward_features.row_max) end.put(i, largest_score(RowState<float>{sums.largest_of(i), state.l}));
    if constexpr (forward_features.entropy)
      end.put_entropy(i, entropy_with_sink(p, x.head, unit_of(p).natural(state), sums.quad_entropy(i, state.l)));
  }
  return end;
}
DEV void write_lses(const ForwardParams& p, const WorkTile& x, const FragmentRows& rows, const float (&lse)[2]) {
  if (!p.lse || opaque_thread() % 4 != 0) return;
  float* const at = p.lse + lse_offset(p, x, rows.row[0]);
  if (rows.row[0] < x.seq_q) at[0] = lse[0];
  if (rows.row[1] < x.seq_q) at[8 * p.lse_stride[2]] = lse[1];
}

DEV void write_maxima(const ForwardParams& p, const WorkTile& x, const FragmentRows& rows, const FinalRows& end) {
  if constexpr (forward_features.row_max) {
    if (opaque_thread() % 4 != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) write_row_max(p, x, rows.row[i], end.row_max(i));
  }
}

DEV void write_entropies(const ForwardParams& p, const WorkTile& x, const FragmentRows& rows, const FinalRows& end) {
  if constexpr (forward_features.entropy) {
    if (opaque_thread() % 4 != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) write_entropy(p, x, rows.row[i], end.entropy(i));
  }
}

// Adds the mean that was subtracted from V, times the share of the weights that keys have; contiguous columns.
template <int N>
DEV void add_means(const ForwardParams& p, const WorkTile& x, float (&o)[N], const FinalRows& end) {
  static_assert(2 * N == features.dim_v);
  const float* const mean =
      p.v_mean + x.batch * p.v_mean_stride[0] + x.head / p.heads_per_kv * p.v_mean_stride[1] + opaque_thread() % 4 * 2;
  // Without sinks it is 1 but in empty rows: no register is held for it.
  const auto share = [&](int i) { return forward_features.sinks ? end.share[i] : end.inv[i] != 0.0f ? 1.0f : 0.0f; };
#pragma unroll
  for (int j = 0; j < N; j += 4) {
    const float m[2] = {mean[2 * j], mean[2 * j + 1]};
#pragma unroll
    for (int i = 0; i < 4; ++i) o[j + i] += share(i / 2) * m[i % 2];
  }
}

// O / l of the sixteen rows from `first` on. `place`: the warp's number among all warps of all tiles.
template <int N>
DEV void normalize_rows(const ForwardParams& p, const WorkTile& x, i32 first, float (&o)[N], const FinalRows& end,
                        FallbackRows& fallback, i32 place) {
  using Out = typename ElementOf<forward_features.output>::Format;
  const bool finite = scale_rows<Out>(o, end.inv);
  if constexpr (forward_features.v_mean) add_means(p, x, o, end);
  if (__any_sync(0xffffffffu, !finite || !end.right))
    fallback.push(p, x, first + (__any_sync(0xffffffffu, is_wrong(end)) ? 1 : 0), place);
}

// O from its fragment by plain stores: rows of the sequence and columns of the tensor only. column(j, quad): of an
// element.
template <int N, class Column>
DEV void store_rows(const ForwardParams& p, const WorkTile& x, const FragmentRows& rows, const float (&o)[N],
                    const Column& column) {
  const u32 quad = opaque_thread() % 4;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const i32 r = rows.row[j >> 1 & 1], d = column(j, quad);
    if (r < x.seq_q && d < features.dim_v) write_out(p, out_offset(p, x, r) + d, o[j]);
  }
}
template <int N>
DEV void store_rows(const ForwardParams& p, const WorkTile& x, const FragmentRows& rows, const float (&o)[N]) {
  store_rows(p, x, rows, o, [](i32 j, u32 quad) { return column_of(j, quad); });
}

}  // namespace onepass
