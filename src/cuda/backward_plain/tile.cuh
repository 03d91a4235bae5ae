// Tiles of rows and keys by a CTA of 16 x 16 threads, in fp32: products of rows with keys, and tiles of pairs in shared
// memory. Thread (t, u) has the pairs of rows t + 16 i with keys u + 16 j.
#pragma once
#include "algebra/nonfinite.hpp"
#include "cuda/backward_plain/pair.cuh"

namespace onepass::cuda::backward_plain {

constexpr i32 kPer = kBlock / kPlainSide;  // rows and keys of a thread
constexpr PlainBackwardLayout kLayout = plain_layout(kBlock);

DEV i32 thread_row() { return static_cast<i32>(threadIdx.x) / kPlainSide; }
DEV i32 thread_key() { return static_cast<i32>(threadIdx.x) % kPlainSide; }

// A row of a tensor and those behind it: `count` of them exist.
struct Rows {
  const void* base;
  i64 at, stride;
  i32 count;
};
DEV Rows rows_at(const void* base, const long long (&stride)[3], i32 batch, i32 head, i32 token, i32 count) {
  return {base, batch * stride[0] + head * stride[1] + static_cast<i64>(token) * stride[2], stride[2],
          min(count, kBlock)};
}
DEV Rows query_rows(const void* base, const long long (&stride)[3], const WorkTile& x) {
  return rows_at(base, stride, x.map_batch, x.head, x.q_begin + x.row, x.seq_q - x.row);
}
DEV Rows key_rows(const BackwardParams& p, const void* base, const long long (&stride)[3], const WorkTile& x, i32 key) {
  return rows_at(base, stride, x.map_batch, x.head / p.heads_per_kv, x.k_begin + key, x.seq_k - key);
}

// Elements [column, column + 4) of a row; 0 beyond its end.
template <ScalarType type, i32 dim>
DEV void read_four(float (&x)[4], const Rows& rows, i32 row, i32 column) {
  using Format = typename ElementOf<type>::Format;
  using Raw = typename Format::Raw;
  constexpr i32 kBytes = 4 * static_cast<i32>(sizeof(Raw));
#pragma unroll
  for (i32 e = 0; e < 4; ++e) x[e] = 0.0f;
  if (row >= rows.count || column >= dim) return;
  const i64 at = rows.at + row * rows.stride + column;
  if (backward_shape.row_bytes >= kBytes && column + 4 <= dim) {
    union {
      Bytes<kBytes> bytes;
      Raw raw[4];
    } four;
    four.bytes = *reinterpret_cast<const Bytes<kBytes>*>(static_cast<const Raw*>(rows.base) + at);
#pragma unroll
    for (i32 e = 0; e < 4; ++e) x[e] = Format::unpack(four.raw[e]);
  } else {
#pragma unroll
    for (i32 e = 0; e < 4; ++e)
      if (column + e < dim) x[e] = element_at<type>(rows.base, at + e);
  }
}

// `columns` columns of a tile's rows on their way to shared memory. All loads of a step begin before its first store.
template <ScalarType type, i32 dim, i32 columns>
struct Copy {
  static constexpr i32 kCount = ceil_div(kBlock * columns / 4, kPlainThreads), kAcross = columns / 4;
  float x[kCount][4];

  DEV void load(const Rows& rows, i32 first) {
#pragma unroll
    for (i32 n = 0; n < kCount; ++n) {
      const i32 i = static_cast<i32>(threadIdx.x) + n * kPlainThreads;
      read_four<type, dim>(x[n], rows, i / kAcross, first + i % kAcross * 4);
    }
  }
  // Returns 0 if all numbers are finite, else NaN.
  DEV float store(u32 to, i32 pitch) const {
    float probe = 0.0f;
#pragma unroll
    for (i32 n = 0; n < kCount; ++n) {
      const i32 i = static_cast<i32>(threadIdx.x) + n * kPlainThreads;
      store_four(to + i / kAcross * pitch + i % kAcross * 16, __float_as_uint(x[n][0]), __float_as_uint(x[n][1]),
                 __float_as_uint(x[n][2]), __float_as_uint(x[n][3]));
#pragma unroll
      for (i32 e = 0; e < 4; ++e) probe = probe_finite(probe, x[n][e]);
    }
    return probe;
  }
};
static_assert(kBlock * kPlainDepth % (4 * kPlainThreads) == 0);

// 16 bytes of shared memory, or 8.
DEV void load_floats(float (&x)[4], u32 from) {
  u32 bits[4];
  load_four(from, bits[0], bits[1], bits[2], bits[3]);
#pragma unroll
  for (i32 e = 0; e < 4; ++e) x[e] = __uint_as_float(bits[e]);
}
DEV void load_floats(float (&x)[2], u32 from) { load_pair(x, from); }

using Pairs = float[kPer][kPer];

DEV void clear_pairs(Pairs& x) {
#pragma unroll
  for (i32 i = 0; i < kPer; ++i) {
#pragma unroll
    for (i32 j = 0; j < kPer; ++j) x[i][j] = 0.0f;
  }
}

// product = A B^T and moved = tA B^T + A tB^T, of all columns; kMovesA: there is a tA. Sums of sums: 200 equal products
// would lose 6 bits.
template <ScalarType type_a, ScalarType type_b, i32 dim, bool kMovesA>
DEV void multiply(u32 sm, const Rows& a, const Rows& ta, const Rows& b, const Rows& tb, Pairs& product, Pairs& moved) {
  constexpr i32 kPitch = kLayout.depth_pitch, kBytes = kBlock * kPitch;
  const u32 of_a = sm + kLayout.operands, of_b = of_a + kBytes, of_ta = of_b + kBytes, of_tb = of_ta + kBytes;
  clear_pairs(product);
  clear_pairs(moved);
#pragma unroll 1
  for (i32 first = 0; first < dim; first += kPlainDepth) {
    Copy<type_a, dim, kPlainDepth> from_a, from_ta;
    Copy<type_b, dim, kPlainDepth> from_b, from_tb;
    from_a.load(a, first);
    from_b.load(b, first);
    if constexpr (kTangents && kMovesA) from_ta.load(ta, first);
    if constexpr (kTangents) from_tb.load(tb, first);
    __syncthreads();  // all reads of the last columns are done
    from_a.store(of_a, kPitch);
    from_b.store(of_b, kPitch);
    if constexpr (kTangents && kMovesA) from_ta.store(of_ta, kPitch);
    if constexpr (kTangents) from_tb.store(of_tb, kPitch);
    __syncthreads();
    Pairs part, moved_part;
    clear_pairs(part);
    clear_pairs(moved_part);
    const u32 own_a = thread_row() * kPitch, own_b = thread_key() * kPitch;
#pragma unroll 1
    for (i32 column = 0; column < 4 * kPlainDepth; column += 16) {
      float y[kPer][4], ty[kPer][4];
#pragma unroll
      for (i32 j = 0; j < kPer; ++j) {
        const u32 at = own_b + j * kPlainSide * kPitch + column;
        load_floats(y[j], of_b + at);
        if constexpr (kTangents) load_floats(ty[j], of_tb + at);
      }
#pragma unroll
      for (i32 i = 0; i < kPer; ++i) {
        const u32 at = own_a + i * kPlainSide * kPitch + column;
        float x[4], tx[4];
        load_floats(x, of_a + at);
        if constexpr (kTangents && kMovesA) load_floats(tx, of_ta + at);
#pragma unroll
        for (i32 e = 0; e < 4; ++e) {
#pragma unroll
          for (i32 j = 0; j < kPer; ++j) {
            part[i][j] = fmaf(x[e], y[j][e], part[i][j]);
            if constexpr (kTangents && kMovesA) moved_part[i][j] = fmaf(tx[e], y[j][e], moved_part[i][j]);
            if constexpr (kTangents) moved_part[i][j] = fmaf(x[e], ty[j][e], moved_part[i][j]);
          }
        }
      }
    }
#pragma unroll
    for (i32 i = 0; i < kPer; ++i) {
#pragma unroll
      for (i32 j = 0; j < kPer; ++j) product[i][j] += part[i][j], moved[i][j] += moved_part[i][j];
    }
  }
}

// A thread's own pairs in shared memory, while it needs the registers: two tiles in the room of those of all pairs, two
// in that of the operands.
constexpr i32 kParkedBytes = 4 * kBlock * kBlock;
static_assert(2 * kParkedBytes <= kLayout.total - kLayout.operands);
DEV u32 parked_at(u32 sm, i32 tile, i32 i, i32 j) {
  const i32 room = tile < 2 ? tile * kLayout.pair_bytes : kLayout.operands + (tile - 2) * kParkedBytes;
  return sm + room + ((i * kPer + j) * kPlainThreads + threadIdx.x) * 4;
}
DEV void park(u32 sm, i32 tile, const Pairs& x) {
#pragma unroll
  for (i32 i = 0; i < kPer; ++i) {
#pragma unroll
    for (i32 j = 0; j < kPer; ++j) store_word(parked_at(sm, tile, i, j), __float_as_int(x[i][j]));
  }
}

DEV void unpark(u32 sm, i32 tile, Pairs& x) {
#pragma unroll
  for (i32 i = 0; i < kPer; ++i) {
#pragma unroll
    for (i32 j = 0; j < kPer; ++j) x[i][j] = load_one(parked_at(sm, tile, i, j));
  }
}

// One of the two tiles of pairs in shared memory. by_key: a row of it is a key, else a query row.
template <bool by_key>
DEV void store_pairs(u32 sm, i32 tile, const Pairs& x) {
#pragma unroll
  for (i32 i = 0; i < kPer; ++i) {
#pragma unroll
    for (i32 j = 0; j < kPer; ++j) {
      const i32 row = thread_row() + kPlainSide * i, key = thread_key() + kPlainSide * j;
      store_word(sm + tile * kLayout.pair_bytes + (by_key ? key : row) * kLayout.pair_pitch + (by_key ? row : key) * 4,
                 __float_as_int(x[i][j]));
    }
  }
}

}  // namespace onepass::cuda::backward_plain
