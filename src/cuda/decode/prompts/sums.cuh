// A block's rows with one result: the softmax of a tile of keys, and the sums of turns and pieces.
#pragma once
#include "cuda/decode/combine.cuh"
#include "cuda/decode/kv_pipeline.cuh"
#include "cuda/decode/operands.cuh"

namespace onepass::decode {

// A tile of the softmax, and the keys whose scores a warp has at a time.
constexpr i32 kSubN = config.sub_n, kStepN = kOutN > 64 && !kWgmma ? kBlockN / 2 : kBlockN, kSubs = kStepN / kSubN;
constexpr i32 kSubWords = sizeof(Weights<kSubN>) / 4;
// Sums of O over a piece: the first ones are in registers, the others in shared memory.
constexpr i32 kStoredSums = stored_sums(forward_features, config), kHeldSums = kOutSums - kStoredSums;
using PieceSums = float[kHeldSums];

// Part `at` of an array of n elements.
template <i32 n, class T>
DEV auto part_of(T* x, i32 at) -> T (&)[n] {
  return *reinterpret_cast<T(*)[n]>(x + at * n);
}

// A block's lazy steps, tile by tile; false, with the state as it was, if a tile of some row needs an exact one. fresh:
// the first tile has had its step. all(x): whether x is true for all rows that are multiplied together.
template <bool fresh, class Unit, class All>
DEV bool take_lazy_steps(const float (&s)[kStepN / 2], Weights<kStepN>& w, LaneRows& rows, const Unit& unit,
                         const LaneScores& scores, i32 first, const All& all) {
  float sum[kSubs][2], norm[kSubs][2];
  bool keeps = unit.lazy(rows);
  const decltype(unit.keep({})) r[2] = {unit.keep(rows.state[0]), unit.keep(rows.state[1])};
  const auto exponent_of = [&](float x, int row) { return unit.lazy_exponent(x, r[row]); };
  SafeTerms terms;  // none
#pragma unroll
  for (i32 i = fresh ? 1 : 0; i < kSubs; ++i) {
    const auto put = [&](int j, const float(&four)[4]) {
      pack_four<Product, kStepN / 2>(i * (kSubN / 2) + j, four, w);
    };
    exponentiate<Product, kRoundedSums>(part_of<kSubN / 2>(s, i), put, exponent_of, sum[i], norm[i], terms,
                                        scores.drop(first + i * kSubN));
    keeps = keeps && sum[i][0] <= kLazyLimit && sum[i][1] <= kLazyLimit;
  }
  if (!all(keeps)) return false;
  rows.see(s, unit.unit);
#pragma unroll
  for (i32 i = fresh ? 1 : 0; i < kSubs; ++i) {
#pragma unroll
    for (i32 row = 0; row < 2; ++row) {
      absorb(rows.state[row], sum[i][row]);
      if constexpr (kRoundedSums) rows.norm[row] += norm[i][row];
    }
  }
  return true;
}

// The sums of a warp's sixteen rows.
struct TurnSums {
  const u32 sm;
  const DecodeParams& p;

  // The sums of a lane's row i: of the turns of a piece, of all pieces. In shared memory, because registers are dear.
  DEV u32 turned(i32 i) const { return sm + kLayout.united + lane_row(i) * 16; }
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

  DEV void begin_piece(PieceSums& whole) const {
    fill(whole, 0.0f);
#pragma unroll
    for (i32 i = 0; i < 2; ++i) set(turned(i), {{}, 0.0f});
#pragma unroll
    for (i32 j = 0; j < kStoredSums; j += 4) store_four(four_at(sm + kLayout.piece, j), 0, 0, 0, 0);
  }
  // The end of a turn, whose sums are `rows` and `o`; whole: those of the piece.
  DEV void join_turn(const LaneRows& rows, const float (&o)[kOutSums], PieceSums& whole) const {
    const auto unit = unit_of(p);
    Joint joint[2];
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      Sums all = decode::load_sums(turned(i));
      joint[i] = join(unit, all,
                      {{rows.state[i].m, quad_sum(rows.state[i].l)},
                       kRoundedSums ? quad_sum(rows.norm[i]) : 0.0f,
                       rows.largest_of(i)});
      set(turned(i), all);
    }
#pragma unroll
    for (i32 j = 0; j < kHeldSums; ++j) whole[j] = joint[row_of_element(j)](whole[j], o[j]);
#pragma unroll
    for (i32 j = kHeldSums; j < kOutSums; j += 4) {
      float x[4];
      load_sums(sm + kLayout.piece, j - kHeldSums, x);
#pragma unroll
      for (i32 i = 0; i < 4; ++i) x[i] = joint[i / 2](x[i], o[j + i]);
      store_sums(sm + kLayout.piece, j - kHeldSums, x);
    }
  }
  // All sums over a piece.
  DEV void take_piece(const PieceSums& whole, float (&o)[kOutSums]) const {
#pragma unroll
    for (i32 j = 0; j < kHeldSums; ++j) o[j] = whole[j];
#pragma unroll
    for (i32 j = kHeldSums; j < kOutSums; j += 4) load_sums(sm + kLayout.piece, j - kHeldSums, o + j);
  }

  // The end of a piece, and with `over` of the rows.
  DEV void join_piece(const Segment& segment, float (&o)[kOutSums], bool over) const {
    const bool first = segment.step == segment.group.step;
    Joint joint[2];
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      Sums all{{}, 0.0f};
      if (!first) all = decode::load_sums(done(i));
      joint[i] = join(unit_of(p), all, decode::load_sums(turned(i)));
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
  DEV void put(const Group& g, const float (&o)[kOutSums]) const {
    const i32 lane = static_cast<i32>(opaque_thread() % 32);
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const i32 row = lane_row(i);
      const RowEnd end(p, g, row, decode::load_sums(done(i)));
      if (row < g.rows(p)) {
        if (lane % 4 == 0) end.put_lse();
        bool good = true;
#pragma unroll
        for (i32 j = 2 * i; j < kOutSums; j += 4) {
#pragma unroll
          for (i32 c = 0; c < 2; ++c) {
            const i32 column = column_of(j + c, static_cast<u32>(lane % 4));
            if (features.dim_v % kGroupColumns == 0 || column < features.dim_v)
              good = end.put_one(column, o[j + c]) && good;
          }
        }
        if (!good) flag(sm, row, end.wrong());
      }
    }
  }
};

}  // namespace onepass::decode
