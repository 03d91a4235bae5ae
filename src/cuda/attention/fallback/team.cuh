// Warps of a CTA that have ended their tiles. They tell each other in shared memory what they have left; nothing else
// uses it by then.
#pragma once
#include "cuda/attention/fallback/pieces.cuh"
#include "cuda/attention/scores/scores.cuh"
#include "cuda/device/barrier.cuh"
#include "cuda/device/shared.cuh"

namespace onepass::fallback {

// recompute() alone is as good where every row sees every key: it soon meets what explains an element. A pair whose
// score is -inf is hidden: a bias or a score_mod can make it so. Else it takes an infinity or elements of 2^58 and
// more, so q is looked through, and K where V is not finite.
constexpr bool kMasksHide = features.bounded_left || features.bounded_right || features.masks() || features.tree ||
                            features.packed || features.cache();
constexpr bool kScoresHide = kTransforms && !kCapLast;
constexpr i32 kSpans = ceil_div(features.dim_v, kSpan);
// fp32 beyond 256 columns has no register left: its main loop would spill.
constexpr bool kExplains = kMasksHide && !kScoresHide && (kHalves || kSpans <= 4);

// A group of spans is looked at together: the bits of a lane's elements are two registers for each.
constexpr i32 kMostTogether = kExplains ? 4 : 1, kSpanGroups = ceil_div(kSpans, kMostTogether),
              kGroupSpans = ceil_div(kSpans, kSpanGroups);

// Sixteen rows that a warp has left; tile < 0: none.
struct LeftRows {
  i32 tile, first, batch, head;
};

// A note of a warp: its LeftRows, the state of the 32 keys that it has looked at, whether its rows need more. Behind
// the notes: a word for each column of those keys, of a group of spans.
template <i32 kWarps_, u32 kBarrier, class Room_>
struct Team {
  using Room = Room_;  // of a lane
  static constexpr i32 kWarps = kWarps_, kNoteBytes = 32, kColumns = kGroupSpans * kSpan;
  const u32 memory;  // kBytes, at a multiple of 16
  const i32 warp;
  static constexpr u32 kBytes = kWarps * (kNoteBytes + 4 * kColumns);

  DEV void sync() const { bar_sync(kBarrier, kWarps * 32); }
  DEV u32 note(i32 of) const { return memory + static_cast<u32>(of * kNoteBytes); }
  DEV u32 state(i32 of) const { return note(of) + 16; }
  DEV u32 word(i32 of, i32 column) const {
    return memory + static_cast<u32>(kWarps * kNoteBytes + 4 * (of * kColumns + column));
  }
  // All warps have come here; `own` of any of them.
  DEV bool any(bool own) const {
    const i32 lane = static_cast<i32>(opaque_thread() % 32);
    if (lane == 0) store_word(note(warp) + 20, own);
    sync();
    return __any_sync(0xffffffffu, lane < kWarps && load_word(note(min(lane, kWarps - 1)) + 20) != 0);
  }

  // The rows that the warps have left in one tile.
  struct Tile {
    i32 number, batch, head, first, end;  // end: the row behind the last one
  };
  // The tile with the highest number of those that the warps are at.
  DEV Tile agree(const LeftRows& own) const {
    const i32 lane = static_cast<i32>(opaque_thread() % 32);
    if (lane == 0) store_four(note(warp), own.tile, own.first, own.batch, own.head);
    sync();
    LeftRows x;
    load_four(note(min(lane, kWarps - 1)), x.tile, x.first, x.batch, x.head);
    Tile tile = {x.tile, 0, 0, 0x7fffffff, 0};
    const auto each_step = [](const auto& f) {
#pragma unroll
      for (i32 step = 16; step > 0; step /= 2) f(step);
    };
    each_step([&](i32 step) { tile.number = max(tile.number, __shfl_xor_sync(0xffffffffu, tile.number, step)); });
    const bool has = x.tile == tile.number;
    if (has) tile.first = x.first, tile.end = x.first + 16;
    each_step([&](i32 step) {
      tile.first = min(tile.first, __shfl_xor_sync(0xffffffffu, tile.first, step));
      tile.end = max(tile.end, __shfl_xor_sync(0xffffffffu, tile.end, step));
    });
    const i32 one = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, has))) - 1;
    tile.batch = __shfl_sync(0xffffffffu, x.batch, one), tile.head = __shfl_sync(0xffffffffu, x.head, one);
    return tile;
  }
};

}  // namespace onepass::fallback
