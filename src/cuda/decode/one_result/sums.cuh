// Sums of a block's rows with one result, over the pieces of their keys so far.
#pragma once
#include "cuda/decode/kv_pipeline.cuh"
#include "cuda/decode/one_result/parted_rows.cuh"

namespace onepass::decode {

using PromptRows = PartedRows<kKeyParts>;

// The sums of a warp's sixteen rows.
struct BlockSums {
  const u32 sm;
  const DecodeParams& p;

  // The sums of a lane's row i. In shared memory, because registers are dear.
  DEV u32 done(i32 i) const { return sm + kLayout.states + lane_row(i) * 16; }
  static DEV i32 lane_row(i32 i) { return first_own_row() + static_cast<i32>(opaque_thread() % 32 / 4) + 8 * i; }
  static DEV void set(u32 at, const Sums& s) {
    __syncwarp();
    if (opaque_thread() % 4 == 0) decode::store_sums(at, s);
    __syncwarp();
  }

  // This thread's sums j .. j + 3 of O.
  static DEV u32 four_at(u32 memory, i32 j) { return memory + opaque_thread() * 16 + j / 4 * (kThreads * 16); }
  static DEV void load_sums(u32 memory, i32 j, float* to) {
    u32 x[4];
    load_four(four_at(memory, j), x[0], x[1], x[2], x[3]);
#pragma unroll
    for (i32 i = 0; i < 4; ++i) to[i] = __uint_as_float(x[i]);
  }
  static DEV void store_sums(u32 memory, i32 j, const float* x) {
    store_four(four_at(memory, j), __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
               __float_as_uint(x[3]));
  }

  // A tile that a row cannot take lazily. keeps: of this lane's sums.
  template <class Rows, class Unit>
  static DEV void take_exactly(const float (&s)[kBlockN / 2], Weights<kBlockN>& w, float (&o)[kOutSums], Rows& rows,
                               bool (&keeps)[2], const Unit& unit) {
    float tile_max[2];
    row_max(s, kBlockN, tile_max);
#pragma unroll
    for (i32 i = 0; i < 2; ++i) keeps[i] = quad_all(keeps[i]);
    rows.take_exactly(s, w, o, tile_max, keeps, unit);
  }

  // The end of a piece, the first or not, and with `over` of the rows.
  DEV void join_piece(bool first, const PromptRows& rows, float (&o)[kOutSums], bool over) const {
    Joint joint[2];
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      Sums all{{}, 0.0f};
      if (!first) all = decode::load_sums(done(i));
      Sums piece = rows.part_sums(0, i);
#pragma unroll
      for (i32 part = 1; part < kKeyParts; ++part) add_part(piece, rows.part_sums(part, i));
      joint[i] = join(unit_of(p), all, piece);
      set(done(i), all);
    }
#pragma unroll
    for (i32 j = 0; j < kOutSums; j += 4) {
      float before[4] = {};
      if (!first) load_sums(sm + kLayout.sums, j, before);
#pragma unroll
      for (i32 i = 0; i < 4; ++i) o[j + i] = joint[i / 2](before[i], o[j + i]);
      if (!over) store_sums(sm + kLayout.sums, j, o + j);
    }
  }
  // The rows. False if some of this lane's must be computed again; their flags are up.
  DEV bool put(const Group& g, const float (&o)[kOutSums]) const {
    const i32 lane = static_cast<i32>(opaque_thread() % 32);
    bool all = true;
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const i32 row = lane_row(i);
      const RowEnd end(p, g, row, decode::load_sums(done(i)));
      if (row < g.rows(p)) {
        if (lane % 4 == 0) end.put_lse();
        bool good = true;
#pragma unroll
        for (i32 j = 2 * i; j < kOutSums; j += 4) {
          const i32 column = column_of(j, static_cast<u32>(lane % 4));
          if (features.dim_v % kGroupColumns == 0 || column + 1 < features.dim_v)
            good = end.put_two(column, o[j], o[j + 1]) && good;
          else if (column < features.dim_v)
            good = end.put_one(column, o[j]) && good;
        }
        if (!good) flag(sm, row, end.wrong());
        all = all && good;
      }
    }
    return all;
  }
};

}  // namespace onepass::decode
