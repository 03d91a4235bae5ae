// A row's states over parts of its keys, on their way through the workspace, and the rows that come out. Every sum is
// made in one order, so results are the same each time.
#pragma once
#include "cuda/attention/fallback.cuh"
#include "cuda/decode/rows.cuh"
#include "cuda/device/reduce.cuh"

namespace onepass::decode {

struct Sums {  // of a row, over some keys: what its O is worth
  RowState<float> state;
  float norm;  // see LaneRows
};
DEV void store_sums(u32 to, const Sums& s) {
  store_four(to, __float_as_uint(s.state.m), __float_as_uint(s.state.l), __float_as_uint(s.norm), 0);
}
DEV Sums load_sums(u32 from) {
  u32 m, l, norm, unused;
  load_four(from, m, l, norm, unused);
  return {{__uint_as_float(m), __uint_as_float(l)}, __uint_as_float(norm)};
}

// Partial results: a slot for each segment of a group that several segments make up.
struct Partials {
  const DecodeParams& p;
  static constexpr i32 kPitch = partial_pitch(features.dim_v);

  DEV float* sums(i32 slot, i32 row) const { return slot_at(slot) + 4 * row; }
  DEV float* output(i32 slot, i32 row) const { return slot_at(slot) + 4 * kRows + row * kPitch; }
  // A block has at most two such segments: its first and its last. Pieces are numbered as they come.
  static DEV i32 slot_of(const Segment& s) {
    return config.piece != 0 ? s.step : 2 * static_cast<i32>(blockIdx.x) + (s.step == s.group.step);
  }
  static DEV i32 slot_of(const Line& line, const Group& g, i32 part) {
    if constexpr (config.piece != 0) return g.step + part;
    const i32 first = line.block_of(g.step);
    return 2 * (first + part) + (part == 0);
  }
  static DEV i32 parts_of(const Line& line, const Group& g) { return config.piece != 0 ? g.steps : blocks_of(line, g); }
  static DEV i32 blocks_of(const Line& line, const Group& g) {
    return line.block_of(g.end() - 1) - line.block_of(g.step) + 1;
  }

 private:
  DEV float* slot_at(i32 slot) const {
    return p.partials + static_cast<i64>(slot) * partial_floats(kRows, features.dim_v);
  }
};

// A row on its way out. What is not finite is remembered by its row's flag.
struct RowEnd {
  const DecodeParams& p;
  const Group& group;
  PackedRow row;
  FinalRow end;
  bool right;

  DEV RowEnd(const DecodeParams& params, const Group& g, i32 number, const Sums& s)
      : p(params),
        group(g),
        row(PackedRow::of(params, g, number)),
        end(finalize_row(params, row.head, s.state, s.norm)),
        right(unit_of(params).right(s.state)) {}
  DEV void put_lse() const { write_lse(p, group.work_tile(row.head), row.token, end.lse); }
  DEV bool put(i32 column, float o) const {  // whether that is a result
    const float x = o * end.inv;
    write_out(p, out_offset(p, group.work_tile(row.head), row.token) + column, x);
    return right && is_finite(rounded(x));
  }

 private:
  static DEV float rounded(float x) {
    using Format = ElementOf<forward_features.output>::Format;
    return Format::unpack(Format::round(x));
  }
};

DEV void flag(u32 sm, i32 row) { store_word(sm + kLayout.flags + 4 * row, 1); }
DEV void clear_flags(u32 sm) {
  for (i32 row = opaque_thread(); row < kRows; row += kThreads) store_word(sm + kLayout.flags + 4 * row, 0);
}
// Rows whose flag is up, once more, a warp each.
DEV void run_fallback(u32 sm, const DecodeParams& p, const Group& g) {
#pragma unroll 1
  for (i32 row = own_warp(); row < g.rows(p); row += kWarps) {
    if (load_word(sm + kLayout.flags + 4 * row) == 0) continue;
    const PackedRow x = PackedRow::of(p, g, row);
    fallback_row(p, g.work_tile(x.head), RowScores(p, g, x), x.token);
  }
}

// The parts of a group, in order, become its rows; by all threads of one block.
DEV void unite_parts(u32 sm, const DecodeParams& p, const Line& line, const Group& g) {
  constexpr i32 kQuads = Partials::kPitch / 4, kTogether = 16;
  const Partials partials{p};
  const auto unit = unit_of(p);
  const i32 parts = Partials::parts_of(line, g), rows = g.rows(p);
#pragma unroll 1
  for (i32 at = opaque_thread(); at < rows * kQuads; at += kThreads) {
    const i32 row = at / kQuads, column = (at - row * kQuads) * 4;
    Sums all{{}, 0.0f};
    float o[4] = {};
#pragma unroll 1
    for (i32 first = 0; first < parts; first += kTogether) {
      float sums[kTogether][4], x[kTogether][4], top = kNegInf;
#pragma unroll
      for (i32 i = 0; i < kTogether; ++i) {  // the last part again counts for nothing
        const i32 slot = Partials::slot_of(line, g, min(first + i, parts - 1));
        load_global(sums[i], partials.sums(slot, row));
        load_global(x[i], partials.output(slot, row) + column);
      }
#pragma unroll
      for (i32 i = 0; i < kTogether; ++i) top = fmaxf(top, sums[i][0]);
      const auto r = unit.meet(all.state, top);
      all.norm *= r.alpha;
#pragma unroll
      for (i32 d = 0; d < 4; ++d) o[d] *= r.alpha;
#pragma unroll
      for (i32 i = 0; i < kTogether; ++i) {
        if (first + i >= parts) break;
        const float share = unit.share(sums[i][0], r);
        absorb(all.state, sums[i][1] * share);
        all.norm += sums[i][2] * share;
#pragma unroll
        for (i32 d = 0; d < 4; ++d) o[d] += x[i][d] * share;
      }
    }
    const RowEnd end(p, g, row, all);
    if (column == 0) end.put_lse();
    bool good = true;
#pragma unroll
    for (i32 d = 0; d < 4; ++d) {
      if (column + d < features.dim_v) good = end.put(column + d, o[d]) && good;
    }
    if (!good) flag(sm, row);
  }
}

// Whether this block is the last of those that work on the group; all parts are then to be seen.
DEV bool is_last(u32 sm, const DecodeParams& p, const Line& line, const Group& g) {
  const u32 word = sm + kLayout.flags + 4 * kRows;
  all_sync();
  if (opaque_thread() == 0) {
    const i32 first = line.block_of(g.step);
    const u32 others = line.block_of(g.end() - 1) - first;
    memory_fence();
    const bool last = atomicAdd(p.counters + first, 1u) == others;
    if (last) p.counters[first] = 0;  // as it was found
    memory_fence();
    store_word(word, last);
  }
  all_sync();
  return load_word(word) != 0;
}

}  // namespace onepass::decode
