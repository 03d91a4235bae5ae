// K and V as the tiles read them: fp32 K rows without gaps, fp32 V in column tiles.
#if defined(ONEPASS_CPU_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_PACK_INL_H
#undef ONEPASS_CPU_PACK_INL_H
#else
#define ONEPASS_CPU_PACK_INL_H
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "algebra/ceil_div.hpp"
#include "cpu/common/simd-inl.h"
#include "cpu/flash/tile-inl.h"
#include "problem/attention/key_value_view.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// to [keys][dim]. The last vector of a row is read and written again where the row's length is not a multiple of it.
template <class T>
HWY_NOINLINE void pack_rows(const KeyValueView::Run<T>& run, std::int64_t dim, float* to) {
  const T* from = run.row;
  for (std::int64_t k = 0; k < run.tokens; ++k, from += run.stride, to += dim) {
    if (dim < kLanes) {
      store_n(load_n(DF(), from, dim), DF(), to, dim);
      continue;
    }
    for (std::int64_t d = 0; d + kLanes <= dim; d += kLanes) store(load(DF(), from + d), DF(), to + d);
    if (dim % kLanes) store(load(DF(), from + dim - kLanes), DF(), to + dim - kLanes);
  }
}

// Rows [first, first + run) to [tile][keys][kTileDims], the last tile narrower. Row by row, so that memory is read in
// order. Stores of 8 (or 4) run over the end of a tile's row into its next row, which is written later; the last row is
// copied exactly.
template <class T>
HWY_NOINLINE void pack_tiles(const KeyValueView::Run<T>& run, std::int64_t first, std::int64_t keys, std::int64_t dim,
                             float* to) {
  const hn::CappedTag<float, 8> d8;
  constexpr int kStep = static_cast<int>(hn::MaxLanes(d8)), kReach = round_up(kTileDims, kStep);
  const std::int64_t whole = dim / kTileDims * kTileDims;
  const int width = static_cast<int>(dim - whole);  // of the last tile
  const T* from = run.row;
  for (std::int64_t k = first; k < first + run.tokens; ++k, from += run.stride) {
    float* row = to + k * kTileDims;
    std::int64_t column = 0;
    if (k + 1 < keys) {
      for (; column + kReach <= dim && column < whole; column += kTileDims, row += keys * kTileDims) {
        for (int i = 0; i < kReach; i += kStep) store(load(d8, from + column + i), d8, row + i);
      }
    }
    for (; column < whole; column += kTileDims, row += keys * kTileDims) {
      for (int i = 0; i < kTileDims; ++i) row[i] = to_float(from[column + i]);
    }
    float* last = to + whole * keys + k * width;
    for (int i = 0; i < width; ++i) last[i] = to_float(from[whole + i]);
  }
}

// Rows of fp8_e4m3 that have come are multiplied by their factors, and get back what was taken out of them.
HWY_INLINE void scale_row(float factor, float* row, std::int64_t dim) {
  for (std::int64_t d = 0; d < dim; ++d) row[d] *= factor;
}
inline void add_mean(const KeyValueView& view, std::int64_t head, std::int64_t column, float* row, std::int64_t dim) {
  for (std::int64_t d = 0; d < dim; ++d) row[d] += view.mean(head, column + d);
}

// Keys [lo, lo + n) of a K/V head of K or V: rows without gaps, or column tiles.
inline void convert_rows(const KeyValueView& view, std::int64_t dim, const flash::Task& task, std::int64_t lo,
                         std::int64_t n, float* to) {
  flash::with_input(view.dtype(), [&](auto zero) {
    view.each_run<decltype(zero)>(task.head_kv, lo, n,
                                  [&](const auto& run, std::int64_t first) { pack_rows(run, dim, to + first * dim); });
  });
  for (std::int64_t k = 0; view.scaled() && k < n; ++k) scale_row(view.factor(task.head_kv, lo + k), to + k * dim, dim);
}
inline void convert_tiles(const KeyValueView& view, std::int64_t dim, const flash::Task& task, std::int64_t lo,
                          std::int64_t n, float* to) {
  flash::with_input(view.dtype(), [&](auto zero) {
    view.each_run<decltype(zero)>(task.head_kv, lo, n,
                                  [&](const auto& run, std::int64_t first) { pack_tiles(run, first, n, dim, to); });
  });
  for (std::int64_t k = 0; view.scaled() && k < n; ++k) {
    const float factor = view.factor(task.head_kv, lo + k);
    for (std::int64_t column = 0; column < dim; column += kTileDims) {
      const std::int64_t width = std::min<std::int64_t>(kTileDims, dim - column);
      scale_row(factor, to + column * n + k * width, width);
      if (view.centered()) add_mean(view, task.head_kv, column, to + column * n + k * width, width);
    }
  }
}
inline void convert_k(const flash::Call& call, const flash::Task& task, std::int64_t lo, std::int64_t n, float* to) {
  convert_rows(keys_of(call.arguments, task.seq), call.problem.dim_qk, task, lo, n, to);
}
inline void convert_v(const flash::Call& call, const flash::Task& task, std::int64_t lo, std::int64_t n, float* to) {
  convert_tiles(values_of(call.arguments, task.seq), call.problem.dim_v, task, lo, n, to);
}

// One block of keys as the tiles will read it.
struct Block {
  std::int64_t first, keys;  // keys [first, first + keys)
  const float *k, *v;
  std::ptrdiff_t k_stride, v_stride;  // from key to key; v_stride only if V is read in place
  bool v_tiled;
  bool v_finite = true;

  const float* v_tile(std::int64_t column) const { return v + (v_tiled ? column * keys : column); }
  std::ptrdiff_t v_step(int width) const { return v_tiled ? width : v_stride; }
};

inline bool all_finite(const float* x, std::int64_t count) {
  VF probe[4] = {hn::Zero(DF()), hn::Zero(DF()), hn::Zero(DF()), hn::Zero(DF())};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
    for (int v = 0; v < 4; ++v) probe[v] = probe_finite(probe[v], hn::LoadU(DF(), x + i + v * kLanes));
  for (; i + kLanes <= count; i += kLanes) probe[0] = probe_finite(probe[0], hn::LoadU(DF(), x + i));
  if (i < count) probe[1] = probe_finite(probe[1], load_n(DF(), x + i, count - i));
  return all_zero((probe[0] + probe[1]) + (probe[2] + probe[3]));
}

inline Block open_block(const flash::Call& call, const flash::Task& task, const flash::Scratch& scratch,
                        std::int64_t first) {
  const std::int64_t keys = std::min<std::int64_t>(kBlock, task.seq.seq_k - first);
  Block b{first, keys, nullptr, nullptr, call.problem.dim_qk, 0, true};
  // In place: a block lies in one run (config_of).
  const auto rows = [&](const ConstTensor& t) {
    return KeyValueView(t, task.seq).run<float>(task.head_kv, first, keys);
  };
  switch (call.k_source) {
    case flash::Source::packed: b.k = call.k_of(task.slot) + first * call.problem.dim_qk; break;
    case flash::Source::block: convert_k(call, task, first, keys, scratch.k), b.k = scratch.k; break;
    case flash::Source::in_place:
      const auto k = rows(call.arguments.k);
      b.k = k.row;
      b.k_stride = k.stride;
  }
  switch (call.v_source) {
    case flash::Source::packed:
      b.v = call.v_of(task.slot) + first * call.problem.dim_v;
      b.v_finite = call.finite_of(task.slot, first) != 0;
      break;
    case flash::Source::block:
      convert_v(call, task, first, keys, scratch.v), b.v = scratch.v;
      b.v_finite = all_finite(b.v, keys * call.problem.dim_v);
      break;
    case flash::Source::in_place:
      const auto v = rows(call.arguments.v);
      b.v = v.row;
      b.v_stride = v.stride;
      b.v_tiled = false;
      for (std::int64_t k = 0; k < keys; ++k)
        b.v_finite = all_finite(b.v + k * b.v_stride, call.problem.dim_v) && b.v_finite;
  }
  return b;
}

// Keys [from, to) of a column tile become finite. bits: bit k of a column is set if key from + k was not.
template <int width>
void take_nonfinite_tile(float* tile, std::int64_t from, std::int64_t to, std::uint32_t* bits) {
  std::uint32_t any[width] = {};
  for (std::int64_t key = from; key < to; ++key) {
    float* const row = tile + key * width;
    const std::uint32_t bit = std::uint32_t{1} << (key - from);
    for (int c = 0; c < width; ++c) {  // g++ makes vectors of it
      constexpr std::uint32_t kExponent = 0x7f800000;
      const auto x = std::bit_cast<std::uint32_t>(row[c]);
      const std::uint32_t finite = (x & kExponent) == kExponent ? 0 : ~std::uint32_t{0};
      any[c] |= bit & ~finite;
      row[c] = std::bit_cast<float>(x & finite);
    }
  }
  std::copy_n(any, width, bits);
}
template <int... widths>
void take_nonfinite_tile(int width, std::integer_sequence<int, widths...>, float* tile, std::int64_t from,
                         std::int64_t to, std::uint32_t* bits) {
  (void)((width == widths + 1 && (take_nonfinite_tile<widths + 1>(tile, from, to, bits), true)) || ...);
}

// Column tiles of n keys become finite. flags: [kFlagWords][dim], as nonfinite-inl.h has them.
inline void take_nonfinite(float* v, std::int64_t n, std::int64_t dim, std::uint32_t* flags) {
  for (std::int64_t column = 0; column < dim; column += kTileDims) {
    const int width = static_cast<int>(std::min<std::int64_t>(kTileDims, dim - column));
    for (int word = 0; word < kFlagWords; ++word) {
      take_nonfinite_tile(width, std::make_integer_sequence<int, kTileDims>(), v + column * n,
                          std::min<std::int64_t>(n, word * kFlagKeys),
                          std::min<std::int64_t>(n, (word + 1) * kFlagKeys), flags + word * dim + column);
    }
  }
}

inline void pack_head(const flash::Call& call, const flash::Task& task, std::int64_t key_lo, std::int64_t key_hi) {
  for (std::int64_t k = key_lo; k < key_hi; k += kBlock) {
    const std::int64_t n = std::min<std::int64_t>(kBlock, key_hi - k);
    if (call.k_source == flash::Source::packed)
      convert_k(call, task, k, n, call.k_of(task.slot) + k * call.problem.dim_qk);
    if (call.v_source == flash::Source::packed) {
      float* const v = call.v_of(task.slot) + k * call.problem.dim_v;
      convert_v(call, task, k, n, v);
      const bool finite = all_finite(v, n * call.problem.dim_v);
      call.finite_of(task.slot, k) = finite ? 1 : 0;
      if (!finite) take_nonfinite(v, n, call.problem.dim_v, call.flags_of(task.slot, k));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
