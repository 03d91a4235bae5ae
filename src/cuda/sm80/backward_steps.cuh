// The parts of the backward kernel: its steps, their copies, and what leaves it.
#pragma once
#include "cuda/attention/backward_fallback.cuh"
#include "cuda/attention/backward_fragment.cuh"
#include "cuda/attention/epilogue.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/sm80/backward_config.hpp"
#include "cuda/sm80/backward_sums.cuh"
#include "cuda/sm80/copy.cuh"

namespace onepass::sm80 {

constexpr BackwardLayout kLayout = layout_of(backward_features, config);
constexpr i32 kBlockM = config.block_m, kBlockN = config.block_n(), kStages = config.stages;
using KeyTiles = TileScheduler<KeysOuter<kBlockM, kBlockN>>;
static_assert(kBlockM == kBlockQ && kBlockN == kBlockK);

DEV u32 own_keys() { return opaque_thread() / 32 / kShare * kWarpRows; }  // this warp's first key within the tile
DEV u32 own_part() { return opaque_thread() / 32 % kShare; }              // of the warps that hold these keys
constexpr i32 kPartM = kBlockM / kShare;                                  // query rows that it makes S and dS of
static_assert(kPartM % 16 == 0);
// Accumulators of its columns of a gradient of `dim` columns: every kShare-th group.
constexpr i32 own_sums(i32 dim) { return (dim / kGroupColumns + kShare - 1) / kShare * (kGroupColumns / 2); }
constexpr i32 kKSums = own_sums(kQkDepth), kVSums = own_sums(kOutN);

DEV void store_tile(u32 to, const KeyTile& x) {
  store_four(to, x.key, x.number, x.head, x.batch);
  store_four(to + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  store_four(to + 32, x.m_lo, x.m_hi, x.map_batch, 0);
}
DEV KeyTile load_key_tile(u32 from) {
  KeyTile x;
  i32 unused;
  load_four(from, x.key, x.number, x.head, x.batch);
  load_four(from + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  load_four(from + 32, x.m_lo, x.m_hi, x.map_batch, unused);
  return x;
}
// The tile of work at `work`, read again: it takes no registers between two uses.
DEV KeyTile tile_in_hand(u32 work, const BackwardParams& p) {
  KeyTile x;
  i32 unused;
  load_four(work, x.key, x.number, x.head, x.batch);
  load_four(work + 32, x.m_lo, x.m_hi, x.map_batch, unused);
  if constexpr (features.packed) {
    load_four(work + 16, x.q_begin, x.k_begin, x.seq_q, x.seq_k);
  } else {  // what the parameters know
    x.seq_q = p.seq_q, x.seq_k = p.seq_k;
    x.map_batch = x.batch;
  }
  return x;
}

// Rows of this warp in a tile, as multiply_rows asks for them.
template <i32 pitch>
struct RowsOf {
  u32 tile;
  DEV u32 address() const { return LeftFragments<kRowTiles, pitch>::address(tile); }
  DEV LeftFragments<kRowTiles, pitch> operator()(u32 address, i32 k) const {
    LeftFragments<kRowTiles, pitch> a;
    a.load(address, k);
    return a;
  }
};

// A block of query rows of one of the heads that read the tile's keys.
struct RowStep {
  i32 head, m;
  u32 slot;  // of the ring of blocks

  DEV bool exists(const BackwardParams& p, const KeyTile& x) const { return head < (x.head + 1) * p.heads_per_kv; }
  DEV u32 q(u32 sm) const { return sm + kLayout.q + slot * kLayout.q_bytes; }
  DEV u32 dout(u32 sm) const { return sm + kLayout.dout + slot * (kLayout.dout_parts * kLayout.dout_bytes); }
  DEV u32 statistics(u32 sm) const { return sm + kLayout.statistics + slot * kLayout.statistics_bytes; }
  DEV i32 row() const { return m * kBlockM + static_cast<i32>(own_part()) * kPartM; }  // of this warp's part
  // The next one, or the next from here on, that the mask leaves some of. In a deterministic call none is left out:
  // every tile takes its turn.
  DEV RowStep next(const BackwardParams& p, const KeyTile& x) const {
    return RowStep{head, m + 1, kStages == 1 ? 0 : slot ^ 1}.or_later(p, x);
  }
  DEV RowStep or_later(const BackwardParams& p, const KeyTile& x) const {
    RowStep s = *this;
    for (;;) {
      if (s.m >= x.m_hi) s.m = x.m_lo, ++s.head;
      if (!features.bool_mask || backward_features.deterministic || !s.exists(p, x) || !s.masked(p, x)) return s;
      ++s.m;
    }
  }
  DEV bool masked(const BackwardParams& p, const KeyTile& x) const {
    const unsigned char* const tiles = p.mask.tiles + x.batch * p.mask.tile_stride[0] + head * p.mask.tile_stride[1] +
                                       m * kBlockM / 64 * p.mask.tile_stride[2] + x.key / 32;
    bool all = true;
    for (i32 n = 0; n < (kBlockN + 31) / 32 && x.key + 32 * n < x.seq_k; ++n) all = all && tiles[n] == kAllMasked;
    return all;
  }
};
static_assert(kBlockM <= 64 && (kBlockN % 32 == 0 || kBlockN == 16), "a tile of the mask is 64 rows and 32 keys");
DEV RowStep first_step(const BackwardParams& p, const KeyTile& x) {
  const i32 first = x.head * p.heads_per_kv;
  if (x.m_lo >= x.m_hi) return {first + p.heads_per_kv, 0, 0};
  return RowStep{first, x.m_lo, 0}.or_later(p, x);
}

DEV KeyScores scores_of(const BackwardParams& p, const KeyTile& x, const RowStep& step, i32 r) {
  KeyScores scores{{p}};
  scores.open(rows_of(x, step.head, step.row()), x.key + static_cast<i32>(own_keys()) + 16 * r);
  return scores;
}
// Whether any row of the step sees a key of this warp. The block of threads loads what any of its warps sees.
DEV bool sees(const BackwardParams& p, const KeyTile& x, const RowStep& step) {
  const i32 row = step.m * kBlockM, key = x.key + static_cast<i32>(own_keys());
  const Band::Range keys = band_of(p, x.seq_q, x.seq_k).key_range(row, min(row + kBlockM, x.seq_q));
  return key < keys.hi && key + kWarpRows > keys.lo;
}

// ------------------------------------------------------------------------------------------------------------- copies
DEV const char* token_0(const void* base, const long long (&stride)[3], const KeyTile& x, i32 head, i32 begin) {
  return static_cast<const char*>(base) + token_offset(stride, x.map_batch, head, begin) * kElementBytes;
}
DEV void copy_keys(u32 sm, const BackwardParams& p, const KeyTile& x) {
  const TileCopy<kBlockN, features.dim_qk, kLayout.qk_pitch, 4> k{0, p.k_stride[2], x.seq_k};
  const TileCopy<kBlockN, features.dim_v, kLayout.v_pitch, 4> v{0, p.v_stride[2], x.seq_k};
  k(sm + kLayout.k, x.key, token_0(p.k, p.k_stride, x, x.head, x.k_begin));
  v(sm + kLayout.v, x.key, token_0(p.v, p.v_stride, x, x.head, x.k_begin));
}

// dO in fp32 where q, k and v have 16 bits, through registers: its rounding, and behind that tile what is left,
// rounded.
template <class Format>
DEV void copy_parts(u32 to, const BackwardParams& p, const KeyTile& x, const RowStep& step) {
  if constexpr (Format::kPacked == 2) {
    constexpr i32 kChunks = kOutN / 8;
    const float* const from =
        static_cast<const float*>(p.dout) + token_offset(p.dout_stride, x.map_batch, step.head, x.q_begin);
#pragma unroll 1
    for (i32 i = static_cast<i32>(opaque_thread()); i < kBlockM * kChunks; i += kThreads) {
      const i32 row = i / kChunks, chunk = i % kChunks, token = step.m * kBlockM + row;
      u32 high[4], low[4];
#pragma unroll
      for (i32 e = 0; e < 4; ++e) {
        float whole[2], rest[2];
#pragma unroll
        for (i32 k = 0; k < 2; ++k) {
          const i32 d = 8 * chunk + 2 * e + k;
          whole[k] = token < x.seq_q && d < features.dim_v ? from[token * p.dout_stride[2] + d] : 0.0f;
          rest[k] = whole[k] - Format::unpack(Format::round(whole[k]));
        }
        high[e] = Format::pack(whole[0], whole[1]);
        low[e] = Format::pack(rest[0], rest[1]);
      }
      const u32 at = to + swizzled(row, chunk, kLayout.v_pitch);
      store_four(at, high[0], high[1], high[2], high[3]);
      store_four(at + kLayout.dout_bytes, low[0], low[1], low[2], low[3]);
    }
  }
}
DEV void copy_queries(u32 sm, const BackwardParams& p, const KeyTile& x, const RowStep& step) {
  if (!step.exists(p, x)) return;
  const i32 row = step.m * kBlockM;
  const TileCopy<kBlockM, features.dim_qk, kLayout.qk_pitch> q{0, p.q_stride[2], x.seq_q};
  q(step.q(sm), row, token_0(p.q, p.q_stride, x, step.head, x.q_begin));
  if constexpr (forward_features.output == features.input) {
    const TileCopy<kBlockM, features.dim_v, kLayout.v_pitch> dout{0, p.dout_stride[2], x.seq_q};
    dout(step.dout(sm), row, token_0(p.dout, p.dout_stride, x, step.head, x.q_begin));
  } else {
    copy_parts<Element>(step.dout(sm), p, x, step);
  }
  const u32 thread = opaque_thread();
  if (thread < kBlockM / 2) {
    const float* const from = statistics_of(p, place_of(p, step.head, first_q_block(p, x.batch) + step.m));
    copy_async<16>(step.statistics(sm) + 16 * thread, reinterpret_cast<const char*>(from + 4 * thread), true);
  }
}

// ------------------------------------------------------------------------------------------------------------- results
// A fragment as the left operand of the next product, without what dropout drops.
template <i32 N>
DEV void pack_kept(const float (&x)[N], const Kept<N>& kept, Weights<2 * N>& w) {
#pragma unroll
  for (i32 j = 0; j < N; j += 4) {
    float four[4];
#pragma unroll
    for (i32 i = 0; i < 4; ++i) four[i] = kept.has(j + i) ? x[j + i] : 0.0f;
    pack_four<Element, N>(j, four, w);
  }
}
// This warp's part of a tile of kBlockN keys x kBlockM rows, P's or dS's.
DEV void store_part(u32 sm, const Weights<kPartM> (&w)[kRowTiles]) {
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r)
    store_results<kPartM, kLayout.ds_pitch>(w[r], sm + kLayout.ds, own_keys() + 16 * r,
                                            own_part() * (kPartM * kElementBytes / 32));
}
// All rows of this warp's keys: what it has itself, or has stored with those that share its keys.
DEV void whole_rows(u32 sm, const Weights<kPartM> (&part)[kRowTiles], Weights<kBlockM> (&w)[kRowTiles]) {
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    if constexpr (kShare > 1) {
      load_results<kBlockM, kLayout.ds_pitch>(w[r], sm + kLayout.ds, own_keys() + 16 * r);
    } else {
#pragma unroll
      for (i32 i = 0; i < static_cast<i32>(sizeof part[r] / 4); ++i) w[r][i] = part[r][i];
    }
  }
}

// Deterministic: the key tiles that see a block of rows add to its sums one after the other, the first keys first.
DEV u32 turn_of(const BackwardParams& p, const KeyTile& x, const RowStep& step) {
  const i32 row = step.m * kBlockM;
  const Band::Range keys = band_of(p, x.seq_q, x.seq_k).key_range(row, min(row + kBlockM, x.seq_q));
  return x.key / kBlockN - keys.lo / kBlockN;
}
DEV void wait_for_sums(const BackwardParams& p, const KeyTile& x, const RowStep& step, i64 place) {
  if constexpr (!backward_features.deterministic) return;
  if (opaque_thread() == 0) wait_for_turn(p.turns + place, turn_of(p, x, step));
  __syncthreads();
}
DEV void pass_sums(const BackwardParams& p, const KeyTile& x, const RowStep& step, i64 place) {
  if constexpr (!backward_features.deterministic) return;
  memory_fence();
  __syncthreads();
  if (opaque_thread() == 0) pass_turn(p.turns + place, turn_of(p, x, step) + 1);
}

// dS K, by all warps: sixteen rows each, and of the columns every kAcross-th group, as many at once as 32 registers
// hold.
DEV void add_dq(const BackwardParams& p, u32 sm, const KeyTile& x, const RowStep& step) {
  constexpr i32 kDown = kBlockM / 16, kAcross = config.warps / kDown, kGroups = kQkDepth / kGroupColumns;
  constexpr i32 kOwn = (kGroups + kAcross - 1) / kAcross, kDepth = kBlockN % 32 == 0 ? 32 : 16;
  constexpr i32 kOfGroup = kGroupColumns / 2, kAtOnce = kOwn < 32 / kOfGroup ? kOwn : 32 / kOfGroup;
  static_assert(config.warps % kDown == 0 && kBlockN % kDepth == 0);
  const i32 warp = static_cast<i32>(opaque_thread() / 32), row = warp % kDown * 16;
  const i64 place = place_of(p, step.head, first_q_block(p, x.batch) + step.m);
#pragma unroll 1
  for (i32 first = 0; first < kOwn; first += kAtOnce) {
    const i32 group = first * kAcross + warp / kDown;
    float dq[1][kAtOnce * kOfGroup];
    clear(dq);
#pragma unroll 1
    for (i32 key = 0; key < kBlockN; key += kDepth) {
      Weights<kDepth> w[1];
      load_transposed<kDepth, kLayout.ds_pitch>(w[0], sm + kLayout.ds + key * kLayout.ds_pitch, row);
      multiply_columns<kDepth, kLayout.qk_pitch, kAcross>(dq, w, sm + kLayout.k + key * kLayout.qk_pitch, group);
    }
    if (first == 0) wait_for_sums(p, x, step, place);
#pragma unroll
    for (i32 n = 0; n < kAtOnce; ++n) {
      const i32 own = n * kAcross + group;
      if (kGroups % (kAcross * kAtOnce) != 0 && own >= kGroups) break;
#pragma unroll
      for (i32 e = 0; e < kGroupColumns / 8; ++e)
        add_sums(dq_sums_of(p, place) + sum_tile(row, own * (kGroupColumns / 8) + e), dq[0] + n * kOfGroup + 4 * e);
    }
  }
  pass_sums(p, x, step, place);
}

// This lane's part of the gradient of a head's slope.
struct SlopeSums {
  float of[backward_features.dslopes ? kRowTiles : 1] = {};

  DEV auto adder(const KeyScores& scores, i32 r) {
    return [this, &scores, r](i32 row, i32 key, float g) {
      if constexpr (backward_features.dslopes) of[r] -= g * scores.distance(row, key);
    };
  }
  // Heads may have no step.
  DEV void open(const BackwardParams& p, const KeyTile& x) {
    if (opaque_thread() % 32 != 0) return;
    for (i32 head = x.head * p.heads_per_kv; head < (x.head + 1) * p.heads_per_kv; ++head) {
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r)
        *slope_part(p, x, head, x.key + static_cast<i32>(own_keys()) + 16 * r, own_part()) = 0.0f;
    }
  }
  // At a head's last step.
  DEV void flush(const BackwardParams& p, const KeyTile& x, const RowStep& step, const RowStep& next) {
    if (next.head == step.head) return;
#pragma unroll
    for (i32 r = 0; r < kRowTiles; ++r) {
      float sum = of[r];
#pragma unroll
      for (i32 by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
      if (opaque_thread() % 32 == 0)
        *slope_part(p, x, step.head, x.key + static_cast<i32>(own_keys()) + 16 * r, own_part()) = sum;
      of[r] = 0.0f;
    }
  }
};

// ------------------------------------------------------------------------------------------------------- end of a tile
template <class Format>
DEV void store_two(typename Format::Raw* to, float a, float b) {
  if constexpr (Format::kPacked == 2)
    *reinterpret_cast<u32*>(to) = Format::pack(a, b);
  else
    *reinterpret_cast<Bytes<8>*>(to) = {{__float_as_uint(a), __float_as_uint(b)}};
}
// Rows of a gradient by plain stores; false if something is not finite.
template <class Format, i32 dim, i32 N>
DEV bool store_gradient(void* to, const long long (&stride)[3], const KeyTile& x, i32 first, const float (&sum)[N],
                        float scale) {
  constexpr i32 kOfGroup = kGroupColumns / 2;
  const u32 quad = opaque_thread() % 4;
  const FragmentRows rows = FragmentRows::from(first);
  float zero = 0.0f;
#pragma unroll
  for (i32 j = 0; j < N; j += 2) {
    const i32 group = j / kOfGroup * kShare + static_cast<i32>(own_part());
    const i32 key = rows.row[j >> 1 & 1], d = group * kGroupColumns + column_of(j % kOfGroup, quad);
    const float a = scale * sum[j], b = scale * sum[j + 1];
    zero += a * 0.0f + b * 0.0f;
    if (key >= x.seq_k || d >= dim) continue;
    const i64 at = token_offset(stride, x.map_batch, x.head, x.k_begin + key) + d;
    auto* const place = static_cast<typename Format::Raw*>(to) + at;
    if constexpr (config.pairs) {
      store_two<Format>(place, a, b);
    } else {
      place[0] = Format::round(a);
      if (d + 1 < dim) place[1] = Format::round(b);
    }
  }
  return zero == 0.0f;
}
DEV void store_keys(u32 sm, const BackwardParams& p, const KeyTile& x, const float (&dk)[kRowTiles][kKSums],
                    const float (&dv)[kRowTiles][kVSums]) {
  using Format = ElementOf<backward_features.gradients>::Format;
  const u32 chain = sm + kLayout.fallback + opaque_thread() / 32 * 4;
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
    const i32 first = x.key + static_cast<i32>(own_keys()) + 16 * r;
    bool finite = true;
    if constexpr (backward_features.dk)
      finite = store_gradient<Format, features.dim_qk>(p.dk, p.dk_stride, x, first, dk[r], p.scale);
    if constexpr (backward_features.dv) {
      const float scale = features.dropout ? p.dropout.keep_scale : 1.0f;
      finite = store_gradient<Format, features.dim_v>(p.dv, p.dv_stride, x, first, dv[r], scale) && finite;
    }
    if (!__any_sync(0xffffffffu, !finite)) continue;
    FallbackRows fallback{load_word(chain)};
    fallback.push(
        p, rows_of(x, x.head, 0), first,
        (x.number * kShare + static_cast<i32>(own_part())) * (kBlockN / 16) + static_cast<i32>(own_keys()) / 16 + r);
    __syncwarp();  // every lane has read the word
    store_word(chain, fallback.last);
  }
}

}  // namespace onepass::sm80
