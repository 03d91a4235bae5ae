// The pipeline of K and V: each team of warps has a ring of tiles of its own and reads ahead through all of its CTA's
// work, K and V of a tile in turn, past the ends of segments. A warp waits only for its team's copies.
#pragma once
#include "cuda/decode/decode_tile.cuh"

#include "cuda/attention/key_value_view.cuh"
#include "cuda/decode/work_partition.cuh"
#include "cuda/mma/copy.cuh"

namespace onepass::decode {

DEV void team_sync() {
  if constexpr (config.team() == 1)
    __syncwarp();
  else
    bar_sync(1 + own_team(), kTeamThreads);
}

// Where the rows of a tile are: row r is known to lane r % 32. Where there are no pages, row 0 and the stride say it
// all.
using Place = KeyValueView::Place;
struct Places {
  static constexpr i32 kLanes = kBlockN < 32 ? kBlockN : 32, kOfLane = features.paged ? kBlockN / kLanes : 1;
  Place of[kOfLane];

  static DEV Places look_up(const DecodeParams& p, const KeyValueView& view, i32 first, i32 tokens) {  // not checked
    if constexpr (!features.paged) return {view.entry(p, first)};
    Places all;
#pragma unroll
    for (i32 i = 0; i < kOfLane; ++i) {
      const i32 key = first + i * kLanes + static_cast<i32>(opaque_thread() % kLanes);
      all.of[i] = key < tokens ? view.entry(p, key) : Place{-1, 0};
    }
    return all;
  }
  DEV Places checked(const DecodeParams& p) const {
    Places all;
#pragma unroll
    for (i32 i = 0; i < kOfLane; ++i) all.of[i] = KeyValueView::checked(p, of[i]);
    return all;
  }
  // By all lanes of a warp, for rows of the same 32.
  DEV Place row(i32 r, i32 thirty_two) const { return taken(of[thirty_two], r); }
  // For any row. No index that only the device knows: it would move all places to local memory.
  DEV Place row(i32 r) const {
    const bool first = r < kLanes;
    return taken({first ? of[0].batch : of[kOfLane - 1].batch, first ? of[0].token : of[kOfLane - 1].token}, r);
  }

 private:
  static DEV Place taken(const Place& own, i32 lane) {
    return {__shfl_sync(0xffffffffu, own.batch, lane), __shfl_sync(0xffffffffu, own.token, lane)};
  }
};

// A tile of K or V. Tokens past the sequence are zeros, since whatever they hold would meet weights of 0; so are pages
// that do not exist.
template <i32 dim, i32 pitch>
DEV void copy_tile(u32 to, const void* tensor, const long long (&stride)[3], const KeyValueView& view,
                   const Places& places, i32 tokens) {
  constexpr i32 kBytes = dim * kKeyBytes, kChunks = round_up(dim, 16) * kKeyBytes / 16;
  constexpr i32 kAcross = kChunks <= 2 ? 2 : kChunks <= 4 ? 4 : kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;
  constexpr i32 kStep = kCopiers / kAcross;
  const i32 thread = own_copier(), row = thread / kAcross, across = thread % kAcross;
  const auto address = [&](const Place& at) {
    return static_cast<const char*>(tensor) + view.offset(stride, at) * kKeyBytes + across * 16;
  };
  const char* at = features.paged ? nullptr : address({places.of[0].batch, places.of[0].token + row});
  const i64 step = stride[2] * (kKeyBytes * kStep);
  constexpr bool kRare = config.box_rows != 0;  // only tiles that a sequence ends in: few registers, not speed
  const auto copy_rows = [&](i32 i) {           // those of all copiers
    const i32 r = row + i * kStep;
    bool real = r < tokens;
    if constexpr (features.paged) {
      const Place place = kRare ? places.row(r) : places.row(r, i * kStep / Places::kLanes % Places::kOfLane);
      real = place.exists();
      at = address(real ? place : Place{0, 0});
    }
    if (kBlockN % kStep != 0 && r >= kBlockN) return;
#pragma unroll
    for (i32 c = 0; c < kChunks; c += kAcross) {
      const i32 chunk = c + across, bytes = kBytes == 16 * kChunks ? 16 : min(kBytes - chunk * 16, 16);
      if (kChunks % kAcross != 0 && chunk >= kChunks) break;
      copy_chunk<kBytes % 16 == 0, kKeyBytes>(to + chunk_at(r, chunk, pitch), at + c * 16, real ? bytes : 0);
    }
  };
  if constexpr (kRare) {
#pragma unroll 1
    for (i32 i = 0; i < ceil_div(kBlockN, kStep); ++i, at += step) copy_rows(i);
  } else {
#pragma unroll
    for (i32 i = 0; i < ceil_div(kBlockN, kStep); ++i, at += step) copy_rows(i);
  }
}

#if defined(ONEPASS_MASK_MOD)
// A team's tiles that the bounds of a mask_mod (scores/mask_bounds.cuh) do not hide from all rows of the group. A lane
// looks at one of 32 tiles. The ring and the products each have one. Kernels without a mask_mod keep their code.
struct ShownTiles {
  i32 from = 0;  // the tile of bit 0, the first of a run
  u32 left = 0;  // tiles from there on

  // The first one from `begin` on, or `end`.
  DEV i32 first(const DecodeParams& p, const Group& g, i32 begin, i32 end) {
    from = begin;
    left = look(p, g, end);
    return next(p, g, end);
  }
  DEV i32 next(const DecodeParams& p, const Group& g, i32 end) {
#pragma unroll 1
    while (left == 0) {
      if ((from += 32 * kShare) >= end) return end;
      left = look(p, g, end);
    }
    const i32 tile = tile_of(__ffs(static_cast<int>(left)) - 1);
    left &= left - 1;
    return tile;
  }

 private:
  DEV i32 tile_of(i32 i) const { return from + i / kRun * (kShare * kRun) + i % kRun; }
  DEV u32 look(const DecodeParams& p, const Group& g, i32 end) const {
    const i32 tile = tile_of(static_cast<i32>(opaque_thread() % 32)), key = tile * kBlockN,
              head = g.kv_head(p) * p.heads_per_kv, token = g.first_token(p);
    bool any = false;
    if (tile < end)
      any = !interval::is_false(user::mask_bounds(
          interval::just(static_cast<double>(g.batch)), interval::between(head, head + p.heads_per_kv - 1),
          interval::between(token, max(g.end_token(p) - 1, token)),
          interval::between(key, max(min(key + kBlockN, g.seq_k) - 1, key)), p.mod_buffers));
    return __ballot_sync(0xffffffffu, any);
  }
};
#endif

struct Ring {
  const DecodeParams& p;
  const Line& line;
  i32 end;          // of the block's steps
  u32 tiles = 0;    // the team's memory
  Segment ahead{};  // where copies are by now
  KeyValueView view{};
  // Places of the tile whose copies are in flight, and of the next one: the page table is read one tile ahead, because
  // the first use of an entry waits for its load.
  Places places{}, following{};
  i32 tile = 0, tile_end = 0, slot = 0;
#if defined(ONEPASS_MASK_MOD)
  ShownTiles shown{};
  i32 shown_tile = 0;  // behind `tile`
#endif

  DEV void begin(u32 sm, const Segment& first) {
    tiles = sm + kLayout.rings + own_team() * kLayout.team_bytes;
    open(first);
#pragma unroll 1
    for (i32 i = 0; i < kSlots / 2; ++i) copy_next<false>(), copy_next<true>();
    if constexpr (kSlots % 2 != 0) copy_next<false>();
  }
  // With prompts, K and V of a tile are taken together, and given back by taking the next ones: one barrier a tile.
  DEV void begin_pairs(u32 sm, const Segment& first) {
    tiles = sm + kLayout.rings;
    open(first);
#pragma unroll 1
    for (i32 i = 0; i < kSlots / 2 - 1; ++i) copy_next<false>(), copy_next<true>();
  }
  // By the copiers alone, as slots are given back: copy_next for K and V in turn, until nothing is ahead.
  DEV void begin_alone(u32 sm, const Segment& first) {
    tiles = sm + kLayout.rings;
    store_word(stored_end(), end);
    open(first);
  }
  struct Pair {
    u32 k, v;
  };
  DEV Pair take_pair() {
    copies_wait<(kSlots > 4 ? kSlots - 4 : 0)>();
    team_sync();
    copy_next<false>(), copy_next<true>();
    const u32 at = place();
    return {at, at + kLayout.slot_bytes};
  }

  // The oldest tile is here; give() when the team has read it, which says whether it was one of V.
  DEV u32 take() const {
    copies_wait<kSlots - 1>();
    team_sync();
    return place();
  }
  template <bool values>
  DEV void give() {
    team_sync();
    copy_next<values != (kSlots % 2 != 0)>();
  }
  template <bool values>
  DEV void copy_next() {
    copy_next<values>([&](u32 to, i32 tokens) { copy<values>(to, tokens); });
    if constexpr (!kCopyWarps) copies_commit();
  }
  // copy_into(to, tokens): the tile of K or V that is next.
  template <bool values, class CopyInto>
  DEV void copy_next(const CopyInto& copy_into) {
    if (ahead.steps != 0) {
      const i32 tokens = ahead.group.seq_k - tile * kBlockN;
      if constexpr (!values) {
        places = following.checked(p);
        copy_into(place(), tokens);
#if defined(ONEPASS_MASK_MOD)
        shown_tile = shown.next(p, ahead.group, tile_end);
#endif
        if (next_tile() < last_tile()) following = Places::look_up(p, view, next_tile() * kBlockN, ahead.group.seq_k);
      } else {
        copy_into(place(), tokens);
        if ((tile = next_tile()) >= last_tile()) open(line.next(ahead, end_step()));
      }
    }
    slot = slot + 1 == kSlots ? 0 : slot + 1;
  }

  template <bool values>
  DEV void copy(u32 to, i32 tokens) const {
    if constexpr (values)
      copy_tile<features.dim_v, kLayout.v_pitch>(to, p.v, p.v_stride, view, places, tokens);
    else
      copy_tile<features.dim_qk, kLayout.k_pitch>(to, p.k, p.k_stride, view, places, tokens);
  }

 private:
  // Copiers have no registers for these two.
  DEV u32 stored_end() const { return tiles - kLayout.rings + kLayout.flags + 4 * (kRows + 2); }
  DEV i32 end_step() const { return kCopyWarps ? load_word(stored_end()) : end; }
  DEV i32 last_tile() const { return kCopyWarps ? ahead.end_tile() : tile_end; }
  DEV i32 next_tile() const {
#if defined(ONEPASS_MASK_MOD)
    return shown_tile;
#else
    return next_own_tile(tile);
#endif
  }
  DEV u32 place() const { return tiles + slot * kLayout.slot_bytes; }
  DEV void open(const Segment& s) {  // or the first behind it that has a tile for this team
    ahead = s;
    for (; ahead.steps != 0; ahead = line.next(ahead, end_step())) {
      tile = first_own_tile(ahead.tile()), tile_end = ahead.end_tile();
#if defined(ONEPASS_MASK_MOD)
      tile = shown.first(p, ahead.group, tile, tile_end);
#endif
      if (tile >= tile_end) continue;
      view = KeyValueView::of_head(ahead.group.work_tile(0), ahead.group.kv_head(p));
      following = Places::look_up(p, view, tile * kBlockN, ahead.group.seq_k);
      return;
    }
  }
};

}  // namespace onepass::decode
