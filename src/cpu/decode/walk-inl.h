// The order in which a task reads K and V.
#if defined(ONEPASS_CPU_DECODE_WALK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_DECODE_WALK_INL_H
#undef ONEPASS_CPU_DECODE_WALK_INL_H
#else
#define ONEPASS_CPU_DECODE_WALK_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "algebra/mask.hpp"
#include "cpu/common/simd-inl.h"
#include "cpu/decode/decode.hpp"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

// One head's tile of K, or of V: keys [key, key + keys) of the chunk [chunk, chunk + count).
struct Visit {
  bool values = false;
  std::int64_t head = 0, chunk = 0, count = 0, key = 0, keys = 0;
};

// How a mask_mod shows the chunks of a task's heads.
struct ChunkTiles {
  const Tile* tiles = nullptr;  // [heads][count]; nullptr: there is no mask_mod
  std::int64_t first = 0, chunk = 1, count = 0;
  Tile of(std::int64_t head, std::int64_t key) const {
    return tiles ? tiles[head * count + (key - first) / chunk] : Tile::partial;
  }
};

// The order in which a task reads: chunk by chunk, first K, then V, each tile by tile; for all heads of the task in
// turn where they lie side by side in memory, else head by head. Chunks that none of these heads sees are left out.
class Walk {
 public:
  Walk(const DecodeCut& cut, Range keys, std::int64_t heads, const ChunkTiles& shown)
      : cut_(cut), keys_(keys), heads_(keys.lo < keys.hi ? heads : 0), shown_(shown) {
    step_ = cut.keys_outer ? heads : 1;
    to_ = {false, 0, keys.lo, 0, keys.lo, 0};
    skip_hidden();
  }
  bool next(Visit& v) {
    if (first_ >= heads_) return false;
    const std::int64_t end = end_of_chunk();
    v = to_;
    v.count = end - v.chunk;
    v.keys = std::min(cut_.tile, end - v.key);
    if (++to_.head < first_ + step_) return true;
    to_.head = first_;
    if ((to_.key += cut_.tile) < end) return true;
    to_.key = to_.chunk;
    if ((to_.values = !to_.values)) return true;
    leave_chunk(end);
    skip_hidden();
    return true;
  }

 private:
  std::int64_t end_of_chunk() const {
    const std::int64_t from = cut_.one_result ? to_.chunk / cut_.chunk * cut_.chunk : to_.chunk;
    return std::min<std::int64_t>(from + cut_.chunk, keys_.hi);
  }
  void leave_chunk(std::int64_t end) {
    to_.key = to_.chunk = end;
    if (end < keys_.hi) return;
    to_.head = first_ += step_;
    to_.key = to_.chunk = keys_.lo;
  }
  bool hidden() const {
    for (std::int64_t h = first_; h < first_ + step_; ++h)
      if (shown_.of(h, to_.chunk) != Tile::skip) return false;
    return true;
  }
  void skip_hidden() {
    while (shown_.tiles && first_ < heads_ && hidden()) leave_chunk(end_of_chunk());
  }

  const DecodeCut& cut_;
  const Range keys_;
  const std::int64_t heads_;
  const ChunkTiles shown_;
  std::int64_t step_, first_ = 0;  // heads of a block, and its first
  Visit to_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
