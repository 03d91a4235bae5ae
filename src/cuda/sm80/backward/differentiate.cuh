// A step of a warp: a block of query rows against its keys.
#pragma once
#include "cuda/sm80/backward/pass.cuh"

namespace onepass::sm80 {

// dV and dK of its keys, and dS for dQ. Warps that share keys hand each other parts of P and dS.
template <i32 tiles>
DEV void differentiate(const BackwardParams& p, u32 sm, u32 work, const RowStep& step, bool seen,
                       const HeldValues& values, float (&dk)[tiles][kKSums], float (&dv)[tiles][kVSums],
                       SlopeSums& slopes) {
  const u32 ds = sm + kLayout.ds, weights = sm + kLayout.weights;
  const auto each_dout = [&](const auto& add) {
#pragma unroll
    for (i32 i = 0; i < kLayout.dout_parts; ++i) add(step.dout(sm) + i * kLayout.dout_bytes);
  };
  // P of the others: at once, or behind the barrier of dS if that has a place of its own.
  constexpr bool kLater = config.apart && backward_features.dv && backward_features.scores();
  const auto stored_weights = [&] {
    each_dout([&](u32 rows) { multiply_stored<kLayout.v_pitch>(weights, dv, rows); });
  };
  const auto on_weights = [&](const auto& w, u32 piece) {
    if constexpr (!backward_features.dv) return;
    if constexpr (kRowParts > 1) store_part(weights, w);
    each_dout([&](u32 rows) { multiply_own<kLayout.v_pitch>(dv, w, rows, piece); });
    if constexpr (!kLater) {
      meet_sharers();
      stored_weights();
    }
  };
  const auto on_ds = [&](const auto& w, u32 piece) {
    if constexpr (backward_features.dv && !kLater) meet_sharers();  // P, in the same place, has been read
    if constexpr (backward_features.dq || kRowParts > 1) store_part(ds, w, piece);
    if constexpr (backward_features.dk) multiply_own<kLayout.qk_pitch>(dk, w, step.q(sm), piece);
  };
#pragma unroll
  for (u32 piece = 0; piece < config.pieces; ++piece) {
    if (seen) {
      pass<backward_features.scores()>(
          p, sm, work, step, piece, values, [] {}, [&](const auto& w) { on_weights(w, piece); },
          [&](const KeyScores& scores, i32 r) { return slopes.adder(scores, r); },
          [&](const auto& w) { on_ds(w, piece); });
    } else if constexpr (backward_features.dq) {
      const Weights<kPieceM> none[kScoreTiles] = {};
      store_part(ds, none, piece);
    }
  }
  if constexpr (backward_features.dq)
    __syncthreads();  // dS is whole
  else if constexpr (backward_features.dk || kLater)
    meet_sharers();
  if constexpr (kLayout.late_statistics) {
    const KeyTile x = tile_in_hand(work, p);
    copy_statistics(sm, p, x, step.next(p, x));
    copies_commit();
  }
  const auto dq = [&] {
    if constexpr (backward_features.dq) add_dq(p, sm, tile_in_hand(work, p), step);
  };
  if constexpr (!kLater) dq();
  if constexpr (kLater) stored_weights();
  if constexpr (backward_features.dk) multiply_stored<kLayout.qk_pitch>(ds, dk, step.q(sm));
  if constexpr (kLater) dq();
}

// The same where the warps of the same keys have S of sixteen keys each, and take all of P and dS from shared memory.
// dO has one place, and Q as many as there are stages. The order of time:
//
//   S^T                                  two stages: a barrier, and the copies of the next Q, LSE and D
//   dP^T; P^T, dS^T to shared memory     a barrier
//   dV += P^T dO                         two stages: a barrier, and the copy of the next dO
//   dK += dS^T Q                         one stage: a barrier, and all copies
//   dQ += dS K
template <i32 tiles>
DEV void differentiate_by_keys(const BackwardParams& p, u32 sm, u32 work, const RowStep& step, const HeldValues& values,
                               float (&dk)[tiles][kKSums], float (&dv)[tiles][kVSums], SlopeSums& slopes) {
  static_assert(config.apart && kLayout.dout_parts == 1);
  const u32 ds = sm + kLayout.ds, weights = sm + kLayout.weights;
  const auto next = [&] { return step.next(p, tile_in_hand(work, p)); };
  const auto copy_next_q = [&] {
    const KeyTile x = tile_in_hand(work, p);
    if (next().exists(p, x)) copy_q(sm, p, x, next());
    copy_statistics(sm, p, x, next());
    copies_commit();
  };
  const auto copy_next_dout = [&] {
    const KeyTile x = tile_in_hand(work, p);
    if (next().exists(p, x)) copy_dout(sm, p, x, next());
    copies_commit();
  };
#pragma unroll
  for (u32 piece = 0; piece < config.pieces; ++piece) {
    const auto behind_s = [&] {
      if (kStages == 1 || piece != 0) return;
      copies_wait<0>();
      __syncthreads();  // dO is here, and all reads of the last step's Q, P and dS are done
      copy_next_q();
    };
    const auto on_weights = [&](const auto& w) {
      if constexpr (backward_features.dv) store_part(weights, w, piece);
    };
    pass<backward_features.scores()>(
        p, sm, work, step, piece, values, behind_s, on_weights,
        [&](const KeyScores& scores, i32 r) { return slopes.adder(scores, r); },
        [&](const auto& w) { store_part(ds, w, piece); });
  }
  __syncthreads();  // P and dS are whole
  if constexpr (backward_features.dv) multiply_all<kLayout.v_pitch>(weights, dv, step.dout(sm));
  if constexpr (kStages == 2) {
    copies_wait<0>();
    __syncthreads();  // the next Q is here, and all reads of dO are done
    copy_next_dout();
  }
  if constexpr (backward_features.dk) multiply_all<kLayout.qk_pitch>(ds, dk, step.q(sm));
  if constexpr (kStages == 1) {
    __syncthreads();  // all reads of Q and dO are done
    copy_next_dout();
    copy_next_q();
  }
  if constexpr (backward_features.dq) add_dq(p, sm, tile_in_hand(work, p), step);
}

}  // namespace onepass::sm80
