// The end of a segment of the MLA kernel: O leaves, as a result or as a partial one.
#pragma once
#include "cuda/mla/consumer.cuh"

namespace onepass::decode {

// Results of a whole group. Rows that are not finite are flagged.
template <u32 side>
DEV void write_lses(const MlaConsumer<side>& c, const Group& g, i32 row, const RowEnd& end) {
  if (side == 0 && c.lane() % 4 == 0 && row < g.rows(c.p)) end.put_lse();
}
// 16 bits: through Q's memory, so that they leave by 16 bytes.
template <class Out, u32 side>
DEV void write_rows(MlaConsumer<side>& c, const Group& g, const Sums (&sums)[2], Out) {
  const DecodeParams& p = c.p;
  RowFlag what[2];
  bool lost[2];
  float inv[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const RowEnd end(p, g, c.own_row() + 8 * i, sums[i]);
    inv[i] = end.end.inv, what[i] = end.wrong(), lost[i] = end.lost;
    write_lses(c, g, c.own_row() + 8 * i, end);
  }
  u32 zero[2] = {};
#pragma unroll
  for (u32 e = 0; e < 16; ++e) {  // 16 columns
    u32 x[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      x[i] = Out::pack(c.o[8 * e + 2 * i] * inv[i % 2], c.o[8 * e + 2 * i + 1] * inv[i % 2]);
      zero[i % 2] = Out::times_zero_plus(x[i], zero[i % 2]);
    }
    const u32 block = c.sm + kLayout.q + (side * kHalfBlocks + e / 4) * kBlockBytes;
    stmatrix4(swizzled(block, c.warp() * 16 + c.lane() % 16, e % 4 * 2 + c.lane() / 16), x[0], x[1], x[2], x[3]);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const i32 row = c.own_row() + 8 * i;
    const bool unexplained = (zero[i] & 0x7fff7fff) != 0 && !lost[i];
    if ((unexplained || what[i] == kWrong) && row < g.rows(p)) flag(c.sm, row, what[i]);
  }
  all_sync();
  constexpr i32 kChunks = kMlaV / 8;
#pragma unroll 1
  for (i32 at = static_cast<i32>(opaque_thread()); at < g.rows(p) * kChunks; at += kThreads) {
    const i32 row = at / kChunks, chunk = at - row * kChunks;
    u32 x[4];
    load_four(swizzled(c.sm + kLayout.q + static_cast<u32>(chunk / 8) * kBlockBytes, row, chunk % 8), x[0], x[1], x[2],
              x[3]);
    const PackedRow to = PackedRow::of(p, g, row);
    store_global(static_cast<u16*>(p.out) + out_offset(p, g.work_tile(to.head), to.token) + chunk * 8, x);
  }
}
template <u32 side>
DEV void write_rows(MlaConsumer<side>& c, const Group& g, const Sums (&sums)[2], F32) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const i32 row = c.own_row() + 8 * i;
    const RowEnd end(c.p, g, row, sums[i]);
    write_lses(c, g, row, end);
    if (row >= g.rows(c.p)) continue;
    bool good = true;
#pragma unroll
    for (int j = 2 * i; j < 128; j += 4) {
      const i32 column = static_cast<i32>(side) * 256 + column_of(j, c.lane() % 4);
      good = end.put_one(column, c.o[j]) && good;
      good = end.put_one(column + 1, c.o[j + 1]) && good;
    }
    if (!good) flag(c.sm, row, end.wrong());
  }
}

template <u32 side>
DEV void write_partial(const MlaConsumer<side>& c, const Segment& segment, const Sums (&sums)[2]) {
  const Partials partials{c.p};
  const i32 slot = partials.slot_of(segment);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const i32 row = c.own_row() + 8 * i;
    if (row >= segment.group.rows(c.p)) continue;
    if (side == 0 && c.lane() % 4 == 0) {
      float* const to = partials.sums(slot, row);
      to[0] = sums[i].state.m, to[1] = sums[i].state.l, to[2] = sums[i].norm;
      if constexpr (forward_features.row_max) to[3] = sums[i].most;
    }
    float* const out = partials.output(slot, row) + side * 256;
#pragma unroll
    for (int j = 2 * i; j < 128; j += 4)
      store_global(out + column_of(j, c.lane() % 4), {__float_as_uint(c.o[j]), __float_as_uint(c.o[j + 1])});
  }
}

// By all consumers.
template <u32 side>
DEV void end_segment(MlaConsumer<side>& c, const Segment& segment) {
  const DecodeParams& p = c.p;
  const Group& g = segment.group;
  clear_flags(c.sm);
  Sums sums[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sums[i] = {{c.rows.state[i].m, quad_sum(c.rows.state[i].l)},
               kRoundedSums ? quad_sum(c.rows.norm[i]) : 0.0f,
               c.rows.largest_of(i)};
    if (c.lane() % 4 == 0) store_sums(c.state(side, c.own_row() + 8 * i), sums[i]);
  }
  all_sync();  // S has been multiplied by both, so Q's memory is free, too
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // m is the same: the right one's last reference was the left one's to follow
    const Sums a = load_sums(c.state(0, c.own_row() + 8 * i)), b = load_sums(c.state(1, c.own_row() + 8 * i));
    sums[i].state.l = a.state.l + b.state.l;
    sums[i].norm = a.norm + b.norm;
    sums[i].see(a.most), sums[i].see(b.most);
  }
  if (segment.whole()) {
    write_rows(c, g, sums, typename ElementOf<forward_features.output>::Format{});
    all_sync();
    run_fallback(c.sm + kLayout.flags, p, g);
  } else {
    write_partial(c, segment, sums);
  }
  all_sync();
}

}  // namespace onepass::decode
