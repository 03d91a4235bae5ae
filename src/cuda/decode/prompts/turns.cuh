// Prompts with one result per row: blocks of rows, of which a warp has sixteen with all of their keys.
//
// Kernels for few rows share a piece of keys among teams, in tiles of kSubN keys. Here a warp takes the parts of these
// teams one after the other, in tiles of kBlockN keys, and joins the states where theirs meet. A row's steps, products
// and sums are the same, so its bits are. The sums of the pieces so far wait in shared memory.
#pragma once
#include "cuda/decode/combine.cuh"
#include "cuda/decode/kv_pipeline.cuh"
#include "cuda/decode/operands.cuh"

namespace onepass::decode {

// A tile of the softmax, and the keys whose scores a warp has at a time.
constexpr i32 kSubN = config.sub_n, kStepN = kOutN > 64 ? kBlockN / 2 : kBlockN, kSubs = kStepN / kSubN;
constexpr i32 kSubWords = sizeof(Weights<kSubN>) / 4;

// Part `at` of an array of n elements.
template <i32 n, class T>
DEV auto part_of(T* x, i32 at) -> T (&)[n] {
  return *reinterpret_cast<T(*)[n]>(x + at * n);
}

// A block's lazy steps, tile by tile; false, with the state as it was, if a tile of some row needs an exact one. fresh:
// the first tile has had its step.
template <bool fresh, class Unit>
DEV bool take_lazy_steps(const float (&s)[kStepN / 2], Weights<kStepN>& w, LaneRows& rows, const Unit& unit,
                         const LaneScores& scores, i32 first) {
  float sum[kSubs][2], norm[kSubs][2];
  bool keeps = unit.lazy(rows);
  const decltype(unit.keep({})) r[2] = {unit.keep(rows.state[0]), unit.keep(rows.state[1])};
  const auto weight_of = [&](float x, int row) { return unit.lazy_weight(x, r[row]); };
#pragma unroll
  for (i32 i = fresh ? 1 : 0; i < kSubs; ++i) {
    const auto put = [&](int j, const float(&four)[4]) {
      pack_four<Product, kStepN / 2>(i * (kSubN / 2) + j, four, w);
    };
    exponentiate<Product, kRoundedSums>(part_of<kSubN / 2>(s, i), put, weight_of, sum[i], norm[i],
                                        scores.drop(first + i * kSubN));
    keeps = keeps && sum[i][0] <= kLazyLimit && sum[i][1] <= kLazyLimit;
  }
  if (!__all_sync(0xffffffffu, keeps)) return false;
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

// A warp's rows and the sums of the pieces so far. A template, so that kernels without turns do not compile it.
template <i32 turns>
struct Turns {
  const u32 sm;
  const DecodeParams& p;
  Ring& ring;

  // The sums of a lane's row i: of the turns of a piece, of all pieces. In shared memory, because registers are dear.
  DEV u32 turned(i32 i) const { return sm + kLayout.united + lane_row(i) * 16; }
  DEV u32 done(i32 i) const { return sm + kLayout.states + lane_row(i) * 16; }
  static DEV i32 lane_row(i32 i) { return first_own_row() + static_cast<i32>(opaque_thread() % 32 / 4) + 8 * i; }
  static DEV void set(u32 at, const Sums& s) {
    __syncwarp();
    if (opaque_thread() % 4 == 0) store_sums(at, s);
    __syncwarp();
  }

  // A piece: its turns, joined.
  DEV void attend(const Segment& segment, float (&whole)[kOutSums]) const {
    const Group& g = segment.group;
    const QueryOperand query{sm + kLayout.q};
    const i32 row = first_own_row();
    LanePlaces places;
    places.open(p, g, row);
    const Band32 band = band_of(p, g.seq_q, g.seq_k);
    const i32 seen_from = band.keys_of(PackedRow::of(p, g, row).token).lo,
              seen_to = band.keys_of(PackedRow::of(p, g, row + 15).token).hi;
    fill(whole, 0.0f);
#pragma unroll
    for (i32 i = 0; i < 2; ++i) set(turned(i), {{}, 0.0f});
#pragma unroll 1
    for (i32 turn = 0; turn < turns; ++turn) {
      float o[1][kOutSums];
      LaneRows rows = {};
      clear(o);
      bool fresh = true;
#pragma unroll 1
      for (i32 tile = segment.tile() + turn; tile < segment.end_tile(); tile += turns) {
        const Ring::Pair at = ring.take_pair();
#pragma unroll 1
        for (i32 from = 0; from < kBlockN; from += kStepN) {
          const i32 first = tile * kBlockN + from;
          if (first >= seen_to || first + kStepN <= seen_from) continue;  // no row of the warp sees them
          float s[1][kStepN / 2];
          multiply_rows<kQkDepth, kLayout.k_pitch>(s, at.k + from * kLayout.k_pitch, query);
          take_keys(s[0], o, rows, LaneScores{p, g, places}, first, at.v + from * kLayout.v_pitch, fresh);
          fresh = false;
        }
      }
      const auto unit = unit_of(p);
      Joint joint[2];
#pragma unroll
      for (i32 i = 0; i < 2; ++i) {
        Sums all = load_sums(turned(i));
        joint[i] = join(unit, all,
                        {{rows.state[i].m, quad_sum(rows.state[i].l)},
                         kRoundedSums ? quad_sum(rows.norm[i]) : 0.0f,
                         rows.largest_of(i)});
        set(turned(i), all);
      }
#pragma unroll
      for (i32 j = 0; j < kOutSums; ++j) whole[j] = joint[row_of_element(j)](whole[j], o[0][j]);
    }
  }

  // The end of a piece, and with `over` of the rows.
  DEV void join_piece(const Segment& segment, float (&o)[kOutSums], bool over) const {
    const bool first = segment.step == segment.group.step;
    Joint joint[2];
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      Sums all{{}, 0.0f};
      if (!first) all = load_sums(done(i));
      joint[i] = join(unit_of(p), all, load_sums(turned(i)));
      set(done(i), all);
    }
    const u32 memory = sm + kLayout.sums + opaque_thread() * 16;
#pragma unroll
    for (i32 j = 0; j < kOutSums; j += 4) {
      const u32 at = memory + j / 4 * (kThreads * 16);
      float before[4] = {};
      if (!first) {
        u32 x[4];
        load_four(at, x[0], x[1], x[2], x[3]);
#pragma unroll
        for (i32 i = 0; i < 4; ++i) before[i] = __uint_as_float(x[i]);
      }
#pragma unroll
      for (i32 i = 0; i < 4; ++i) o[j + i] = joint[i / 2](before[i], o[j + i]);
      if (!over)
        store_four(at, __float_as_uint(o[j]), __float_as_uint(o[j + 1]), __float_as_uint(o[j + 2]),
                   __float_as_uint(o[j + 3]));
    }
  }
  DEV void put(const Group& g, const float (&o)[kOutSums]) const {
    const i32 lane = static_cast<i32>(opaque_thread() % 32);
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const i32 row = lane_row(i);
      const RowEnd end(p, g, row, load_sums(done(i)));
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

 private:
  DEV void take_keys(float (&s)[kStepN / 2], float (&o)[1][kOutSums], LaneRows& rows, const LaneScores& scores,
                     i32 first, u32 v, bool fresh) const {
    scores.apply(s, first);
    const auto unit = softmax_unit(p);
    Weights<kStepN> w[1];
    const auto step = [&](i32 i, bool exact) {
      softmax_by_row<Product, kRoundedSums>(part_of<kSubN / 2>(s, i), part_of<kSubWords>(w[0], i), o[0], rows, unit,
                                            scores.drop(first + i * kSubN), exact);
    };
    if (fresh) step(0, true);
    const bool lazy = fresh ? take_lazy_steps<true>(s, w[0], rows, unit, scores, first)
                            : take_lazy_steps<false>(s, w[0], rows, unit, scores, first);
    if (lazy) {
      multiply_columns<kStepN, kLayout.v_pitch>(o, w, v);
      return;
    }
#pragma unroll
    for (i32 i = 0; i < kSubs; ++i) {
      if (i != 0 || !fresh) step(i, false);
      multiply_columns<kSubN, kLayout.v_pitch>(o, part_of<1>(&part_of<kSubWords>(w[0], i), 0),
                                               v + i * kSubN * kLayout.v_pitch);
    }
  }
};

// All of a CTA's segments.
template <i32 turns>
DEV void take_turns(u32 sm, const DecodeParams& p, const Line& line, Segment segment, i32 end, Ring& ring) {
  if constexpr (turns > 1) {
    const Turns<turns> rows{sm, p, ring};
#pragma unroll 1
    while (segment.steps != 0) {
      float o[kOutSums];
      clear_flags(sm);
      const u32 stored = sm + kLayout.segments + 64 * own_warp();  // it does not occupy registers meanwhile
      if (opaque_thread() % 32 == 0) segment.store(stored);
      __syncthreads();  // Q is here
      rows.attend(segment, o);
      segment = Segment::load(stored);
      const Group& g = segment.group;
      const bool over = segment.step + segment.steps == g.end();
      rows.join_piece(segment, o, over);
      if (over) {
        rows.put(g, o);
        __syncthreads();
        run_repair(sm + kLayout.sums, sm + kLayout.flags, p, g);
      }
      __syncwarp();  // the warp has read `stored`
      segment = line.next(segment, end);
      if (segment.steps == 0) break;
      if (over) {
        __syncthreads();
        copy_query<true>(sm, p, segment.group);
      }
    }
  }
}

}  // namespace onepass::decode
