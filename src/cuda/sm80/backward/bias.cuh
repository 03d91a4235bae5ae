// The gradient of the bias: dS before softcap's derivative, summed over whatever the bias is repeated for.
//
// A CTA for each tile of the bias, which is written once and whole: it goes through all pairs of rows and
// keys that the tile belongs to, of every batch entry and head, and adds up in registers, in one order. Two of the
// backward pass's five products are computed again for it. No sums in memory, no zeros before, deterministic always.
#pragma once
#include "cuda/sm80/backward/pass.cuh"

namespace onepass::sm80 {

struct BiasTile {  // what it spans; of a dimension along which the bias is repeated, everything
  i32 batch, head, m, n;
  bool one_batch, one_head, one_m, one_n;

  static DEV BiasTile of(const BackwardParams& p, i32 number) {
    const auto take = [&](i32 count) {
      const i32 i = number % count;
      number /= count;
      return i;
    };
    const auto blocks = [&](i32 dim, i32 block) { return ceil_div(p.bias_size[dim], block); };
    BiasTile t;
    t.n = take(blocks(3, kBlockN));
    t.m = take(blocks(2, kBlockM));
    t.head = take(p.bias_size[1]);
    t.batch = number;
    t.one_batch = p.bias_size[0] > 1, t.one_head = p.bias_size[1] > 1;
    t.one_m = p.bias_size[2] > 1, t.one_n = p.bias_size[3] > 1;
    return t;
  }
};

// A lane's sums of the gradients of its scores.
struct BiasSums {
  float of[kScoreTiles][kPartM / 2];
  struct Adder {
    float (&sum)[kPartM / 2];
    mutable i32 at = 0;  // scores come in order
    DEV void operator()(i32, i32, float gradient) const { sum[at++] += gradient; }
  };
  DEV Adder adder(i32 r, u32 piece) { return {of[r], static_cast<i32>(rows_before(piece) / 2)}; }
};

// All blocks of query rows of one head against one tile of keys, as far as the tile of the bias has them.
DEV void add_rows(const BackwardParams& p, u32 sm, const BiasTile& t, const KeyTile& x, i32 head, BiasSums& sums) {
  const u32 work = sm + kLayout.work;
  const i32 from = t.one_m ? max(x.m_lo, t.m) : x.m_lo, to = t.one_m ? min(x.m_hi, t.m + 1) : x.m_hi;
  if (from >= to) return;
  __syncthreads();  // all reads of the previous tile are done
  if (opaque_thread() == 0) store_tile(work, x);
  copy_keys(sm, p, x);
  HeldValues values;
  values.load(p, x);
#pragma unroll 1
  for (i32 m = from; m < to; ++m) {
    const RowStep step{head, m, 0};
    __syncthreads();
    copy_queries(sm, p, tile_in_hand(work, p), step);
    copy_statistics(sm, p, tile_in_hand(work, p), step);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    if (!sees(p, tile_in_hand(work, p), step)) continue;
    const auto nothing = [](const auto&...) {};
#pragma unroll
    for (u32 piece = 0; piece < config.pieces; ++piece)
      pass<true>(
          p, sm, work, step, piece, values, nothing, nothing,
          [&](const KeyScores&, i32 r) { return sums.adder(r, piece); }, nothing);
  }
}

DEV void add_keys(const BackwardParams& p, u32 sm, const BiasTile& t, i32 batch, i32 head, BiasSums& sums) {
  KeyTile x;
  x.head = head / p.heads_per_kv, x.batch = batch, x.map_batch = features.packed ? 0 : batch;
  x.seq_q = p.seq_q, x.seq_k = p.seq_k;
  if constexpr (features.packed) {
    x.q_begin = p.cu_q[batch], x.seq_q = p.cu_q[batch + 1] - x.q_begin;
    x.k_begin = p.cu_k[batch], x.seq_k = p.cu_k[batch + 1] - x.k_begin;
  }
  const i32 to = t.one_n ? min((t.n + 1) * kBlockN, x.seq_k) : x.seq_k;
#pragma unroll 1
  for (x.key = t.one_n ? t.n * kBlockN : 0; x.key < to; x.key += kBlockN) {
    const Band32::Range rows = rows_that_see(band_of(p, x.seq_q, x.seq_k), x.key, min(x.key + kBlockN, x.seq_k));
    x.m_lo = rows.lo / kBlockM, x.m_hi = ceil_div(rows.hi, kBlockM);
    add_rows(p, sm, t, x, head, sums);
  }
}

// Sums over the keys of a warp: of columns j and j + 1 of every eight, in each lane of their quad's column.
DEV float over_keys(float x) {
#pragma unroll
  for (i32 step = 4; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

DEV void write_bias(const BackwardParams& p, u32 sm, const BiasTile& t, BiasSums& sums) {
  constexpr i32 kN = kPartM / 2;
  const u32 lane = opaque_thread() % 32, quad = lane % 4;
  const i32 first_key = (t.one_n ? t.n * kBlockN : 0) + static_cast<i32>(own_score_keys());
  const i32 first_row = (t.one_m ? t.m * kBlockM : 0) + static_cast<i32>(own_row_part()) * kPartM;
  const auto write = [&](i32 row, i32 key, float x) {
    if (row < p.bias_size[2] && key < p.bias_size[3])
      p.dbias[t.batch * p.dbias_stride[0] + t.head * p.dbias_stride[1] + row * p.dbias_stride[2] +
              key * p.dbias_stride[3]] = x;
  };
  if (t.one_m && t.one_n) {
#pragma unroll
    for (i32 r = 0; r < kScoreTiles; ++r) {
#pragma unroll
      for (i32 j = 0; j < kN; ++j) {
        const FragmentRows keys = FragmentRows::from(first_key + 16 * r);
        write(first_row + column_of(j, quad), keys.row[j >> 1 & 1], sums.of[r][j]);
      }
    }
    return;
  }
  // Each warp's sums by row and by key meet in shared memory, where K was: [warp][rows], then [part][keys].
  const u32 by_row = sm, by_key = sm + 4 * config.warps * kPartM;
  __syncthreads();
#pragma unroll
  for (i32 j = 0; j < kN; j += 4) {
#pragma unroll
    for (i32 e = 0; e < 2; ++e) {
      float sum = 0.0f;
#pragma unroll
      for (i32 r = 0; r < kScoreTiles; ++r) sum += sums.of[r][j + e] + sums.of[r][j + 2 + e];
      sum = over_keys(sum);
      if (lane < 4)
        store_word(by_row + 4 * (opaque_thread() / 32 * kPartM + column_of(j + e, quad)),
                   static_cast<i32>(__float_as_uint(sum)));
    }
  }
#pragma unroll
  for (i32 r = 0; r < kScoreTiles; ++r) {
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      float sum = 0.0f;
#pragma unroll
      for (i32 j = 0; j < kN; j += 4) sum += sums.of[r][j + 2 * i] + sums.of[r][j + 2 * i + 1];
      sum = quad_sum(sum);
      if (quad == 0)
        store_word(by_key + 4 * (own_part() * kBlockN + own_score_keys() + 16 * r + 8 * i + lane / 4),
                   static_cast<i32>(__float_as_uint(sum)));
    }
  }
  __syncthreads();
  const auto row_sum = [&](i32 row) {  // of the block of rows
    float sum = 0.0f;
    for (i32 w = row / kPartM; w < config.warps; w += kSameRows)
      sum += load_one(by_row + 4 * (w * kPartM + row % kPartM));
    return sum;
  };
  const auto first_part = [](i32 key) { return kKeyParts == 1 ? 0 : key % kWarpRows / 16 * kRowParts; };
  const i32 thread = static_cast<i32>(opaque_thread());
  if (t.one_m) {
    for (i32 row = thread; row < kBlockM; row += kThreads) write(t.m * kBlockM + row, 0, row_sum(row));
  } else if (t.one_n) {
    for (i32 key = thread; key < kBlockN; key += kThreads) {
      float sum = 0.0f;
      for (i32 part = 0; part < kRowParts; ++part)
        sum += load_one(by_key + 4 * ((first_part(key) + part) * kBlockN + key));
      write(0, t.n * kBlockN + key, sum);
    }
  } else if (thread == 0) {
    float sum = 0.0f;
    for (i32 row = 0; row < kBlockM; ++row) sum += row_sum(row);
    write(0, 0, sum);
  }
}

}  // namespace onepass::sm80

extern "C" __global__ void __launch_bounds__(onepass::sm80::kThreads, onepass::sm80::config.blocks)
    attention_backward_bias(const __grid_constant__ onepass::BackwardParams p) {
  using namespace onepass;
  using namespace onepass::sm80;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sm = shared_address(smem);
  const BiasTile t = BiasTile::of(p, static_cast<i32>(blockIdx.x));
  BiasSums sums;
  clear(sums.of);
#pragma unroll 1
  for (i32 batch = t.one_batch ? t.batch : 0; batch < (t.one_batch ? t.batch + 1 : p.batch); ++batch) {
#pragma unroll 1
    for (i32 head = t.one_head ? t.head : 0; head < (t.one_head ? t.head + 1 : p.heads); ++head)
      add_keys(p, sm, t, batch, head, sums);
  }
  write_bias(p, sm, t, sums);
}
