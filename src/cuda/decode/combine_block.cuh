// States become one: those of the teams at the end of a segment, in shared memory, and those of a row's segments, in
// the workspace (combine.cuh).
#pragma once
#include "cuda/decode/combine.cuh"
#include "cuda/decode/one_result/parted_rows.cuh"

namespace onepass::decode {

// One team's state has nothing to be joined with but none.
constexpr bool kJoinsInOrder = kChained || kSharesTiles;

// Adds up what the teams have, a few columns at a time: emit(row, column, sums) by one thread for each four of them.
// join_team(team, row, all) joins a team's state to those before it, if they are joined one at a time.
template <class Join, class Emit>
DEV void add_teams(u32 sm, i32 rows, const float (&o)[kRowTiles][kOutSums], const float (&weight)[kRowTiles][2],
                   const Join& join_team, const Emit& emit) {
  constexpr i32 kColumns = kLayout.columns;
  const u32 lane = opaque_thread() % 32;
  const i32 first_row = first_own_row() + static_cast<i32>(lane / 4);
  const u32 own = sm + kLayout.sums + own_team() * kRows * kLayout.sum_pitch + lane % 4 * 8;
#pragma unroll 1
  for (i32 from = 0; from < kOutN; from += kColumns) {
    if (from != 0) all_sync();
#pragma unroll
    for (i32 j = 0; j < kOutSums; j += 2) {
      const i32 column = own_columns(j / 4 * 4) - from, i = j >> 1 & 1;
      if (column < 0 || column >= kColumns) continue;
#pragma unroll
      for (i32 r = 0; r < kRowTiles; ++r) {
        const i32 row = first_row + 16 * r + 8 * i;
        if (row < rows)
          store_pair(own + row * kLayout.sum_pitch + column * 4, o[r][j] * weight[r][i], o[r][j + 1] * weight[r][i]);
      }
    }
    all_sync();
#pragma unroll 1
    for (i32 at = opaque_thread(); at < rows * kColumns / 4; at += kThreads) {
      const i32 row = at / (kColumns / 4), column = at % (kColumns / 4) * 4;
      if (from + column >= features.dim_v) continue;
      float sums[4] = {};
      Sums all{{}, 0.0f};
#pragma unroll
      for (i32 team = 0; team < kShare; ++team) {
        u32 x[4];
        load_four(sm + kLayout.sums + (team * kRows + row) * kLayout.sum_pitch + column * 4, x[0], x[1], x[2], x[3]);
        if constexpr (kJoinsInOrder) {
          const auto joint = join_team(team, row, all);
#pragma unroll
          for (i32 i = 0; i < 4; ++i) sums[i] = joint.add(sums[i], __uint_as_float(x[i]));
        } else {
#pragma unroll
          for (i32 i = 0; i < 4; ++i) sums[i] += __uint_as_float(x[i]);
        }
      }
      emit(row, from + column, sums);
    }
  }
}

// The sums of a lane's row i, to the whole quad.
DEV Sums own_sums(const LaneRows& rows, i32 i) {
  return {
      {rows.state[i].m, quad_sum(rows.state[i].l)}, kRoundedSums ? quad_sum(rows.norm[i]) : 0.0f, rows.largest_of(i)};
}
template <i32 parts>
DEV Sums own_sums(const PartedRows<parts>& rows, i32 i) {
  return rows.part_sums(0, i);
}

// The end of a segment.
template <class Rows>
DEV void unite(u32 sm, const DecodeParams& p, const Line& line, const Segment& segment, i32 end,
               const float (&o)[kRowTiles][kOutSums], const Rows (&lane_rows)[kRowTiles]) {
  const auto unit = unit_of(p);
  const Group& g = segment.group;
  const i32 rows = g.rows(p), lane = static_cast<i32>(opaque_thread() % 32);
  const i32 first_row = first_own_row() + lane / 4;
  const auto state_at = [&](i32 team, i32 row) { return sm + kLayout.states + (team * kBlockM + row) * 16; };
  const auto united_at = [&](i32 row) { return sm + kLayout.united + row * 16; };
  const auto terms_at = [&](i32 team, i32 row) { return sm + kLayout.terms + (team * kBlockM + row) * 4; };
  clear_flags(sm);
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      const Sums s = own_sums(lane_rows[r], i);
      const i32 own = kSharesTiles ? static_cast<i32>(own_half()) : own_team();
      if (lane % 4 == 0) store_sums(state_at(own, first_row + 16 * r + 8 * i), s);
      if constexpr (forward_features.entropy) {
        const float terms = lane_rows[r].quad_terms(i);
        if (lane % 4 == 0) store_word(terms_at(own_team(), first_row + 16 * r + 8 * i), __float_as_int(terms));
      }
    }
  }
  all_sync();
  const auto meet = [&](i32 row, Sums& all) {  // of all teams' states
    float part_max = kNegInf;
#pragma unroll
    for (i32 team = 0; team < kShare; ++team) part_max = fmaxf(part_max, load_one(state_at(team, row)));
    return unit.meet(all.state, part_max);
  };
  const auto join_team = [&](i32 team, i32 row, Sums& all) {
    Sums of_team = load_sums(state_at(team, row));
    if constexpr (forward_features.entropy) of_team.terms = load_one(terms_at(team, row));
    if constexpr (kSharesTiles) {
#pragma unroll
      for (i32 part = 1; part < kKeyParts; ++part) add_part(of_team, load_sums(state_at(part, row)));
    }
    return join(unit, all, of_team);
  };
  float weight[kRowTiles][2] = {};
#pragma unroll
  for (i32 r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      Sums all{{}, 0.0f};
      const i32 row = first_row + 16 * r + 8 * i;
      if constexpr (kJoinsInOrder) {
        for (i32 team = 0; team <= own_team(); ++team) weight[r][i] = join_team(team, row, all).weight;
      } else {
        weight[r][i] = unit.part_weight(lane_rows[r].state[i].m, meet(row, all));
      }
    }
  }
  const Partials partials{p};
  const i32 slot = partials.slot_of(segment);
  for (i32 row = opaque_thread(); row < rows; row += kThreads) {
    Sums all{{}, 0.0f};
    if constexpr (kJoinsInOrder) {
      for (i32 team = 0; team < kShare; ++team) join_team(team, row, all);
    } else {
      const auto r = meet(row, all);
      for (i32 team = 0; team < kShare; ++team) {
        const Sums one = load_sums(state_at(team, row));
        const float w = unit.part_weight(one.state.m, r);
        absorb(all.state, one.state.l * w);
        all.norm += one.norm * w;
        all.see(one.most);
        if constexpr (forward_features.entropy)
          all.terms += terms_of_part(unit, r, one.state.m, one.state.l, load_one(terms_at(team, row)), w);
      }
    }
    store_sums(united_at(row), all);
    if (kWholeRows || segment.whole()) {
      RowEnd(p, g, row, all).put_lse();
    } else {
      float* const to = partials.sums(slot, row);
      to[0] = all.state.m, to[1] = all.state.l, to[2] = all.norm;
      if constexpr (forward_features.row_max) to[3] = all.most;
      if constexpr (forward_features.entropy) *partials.terms(slot, row) = all.terms;
    }
  }
  if (kWholeRows || segment.whole()) {
    add_teams(sm, rows, o, weight, join_team, [&](i32 row, i32 column, const float(&sums)[4]) {
      const RowEnd row_end(p, g, row, load_sums(united_at(row)));
      if (!row_end.put(column, sums)) flag(sm, row, row_end.wrong());
    });
  } else {
    add_teams(sm, rows, o, weight, join_team, [&](i32 row, i32 column, const float(&sums)[4]) {
      const u32 words[4] = {__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]),
                            __float_as_uint(sums[3])};
      store_global(partials.output(slot, row) + column, words);
    });
    const bool over = segment.step + segment.steps == min(g.end(), end);  // this block has no more of the group
    if (!over || !is_last(sm, p, line, segment)) {
      all_sync();
      return;
    }
    unite_parts(sm, p, line, g);
  }
  all_sync();
  run_repair(sm + kLayout.sums, sm + kLayout.flags, p, g);
}

}  // namespace onepass::decode
