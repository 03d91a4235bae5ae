// Sixteen rows of a gradient that are not finite, once more by one warp: what is said of them and how they are stored,
// whichever gradient it is.
//
// Lane 4 g + t has rows g and g + 8, and of a span of 64 columns 16 t to 16 t + 15. A set of elements is a bit for each
// (bit_at). place(i): where row i begins in the gradient, with the lane's columns of the first span.
#pragma once
#include "cuda/attention/backward/fallback.cuh"
#include "cuda/attention/backward/repair_team.cuh"

namespace onepass::fallback {

constexpr bool kRepairs = forward_features.output == features.input;  // q and dO are read alike
constexpr bool kAlignedRepairs = backward_shape.row_bytes == 16;

// Rows of a head of a tensor, from a sequence's first token on.
struct TokenRows {
  const char* base;
  i64 bytes;  // from row to row
  i32 end;
  DEV const char* operator()(i32 row) const { return row < end ? base + row * bytes : nullptr; }
};
DEV TokenRows token_rows(const void* base, const long long (&stride)[3], i32 batch, i32 head, i32 first, i32 count) {
  return {static_cast<const char*>(base) + token_offset(stride, batch, head, first) * kElementBytes,
          stride[2] * kElementBytes, count};
}

// Elements that are not finite. rows: all bits of those that exist.
template <i32 kDim, class Place>
DEV u32 lost_elements(const void* to, const Place& place, u32 rows, i32 column, i32 lane) {
  using Format = typename ElementOf<backward_features.gradients>::Format;
  const i32 from = column + lane % 4 * 16;
  u32 bad = 0;
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    if ((rows & bit_at(i, 0)) == 0) continue;
    const auto* const at = static_cast<const volatile typename Format::Raw*>(to) + place(i) + column;
    typename Format::Raw x[16];  // all on their way together
#pragma unroll
    for (i32 c = 0; c < 16; ++c) x[c] = from + c < kDim ? at[c] : typename Format::Raw{};
#pragma unroll
    for (i32 c = 0; c < 16; ++c) bad |= is_finite(Format::unpack(x[c])) ? 0u : bit_at(i, c);
  }
  return bad;
}

// Stores the elements of `bad`: sums times their unit, NaN where flags say that a row sees one.
template <class Place>
DEV void store_elements(void* to, const Place& place, const Output& o, u32 flags, float unit, u32 bad, i32 column) {
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    const i64 at = place(i) + column;
#pragma unroll
    for (i32 c = 0; c < 16; ++c) {
      if ((bad & bit_at(i, c)) == 0) continue;
      const float value = o[output_at(i, c)] * unit;
      write_gradient(to, at + c, (flags & bit_at(i, c)) != 0 ? __int_as_float(0x7fffffff) : value);
    }
  }
}

// Sums that are not finite. What their rows see is the cause.
DEV u32 lost_sums(const Output& o) {
  u32 bits = 0;
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
#pragma unroll
    for (i32 c = 0; c < 16; ++c) bits |= is_finite(o[output_at(i, c)]) ? 0u : bit_at(i, c);
  }
  return bits;
}

// Each of `bad` is right as it stands, since its row sees what is not finite.
DEV bool all_right(u32 bad, const Output& o, u32 flags) {
  return !__any_sync(kAll, (bad & ~flags & ~lost_sums(o)) != 0);
}

// Factors in a unit in which fp16 has room for them, and the sums, too.
DEV void fit(Scores& s, Output& o, float& unit) {
  float most = 0.0f;
#pragma unroll
  for (const float x : s) most = fmaxf(most, finite_or_zero(fabsf(x)));
  most = warp_max(most);
  if (most > unit * 16384.0f) {
    const float grown = most / 256.0f, by = unit / grown;
    unit = grown;
#pragma unroll
    for (float& x : o) x *= by;
  }
  const float inverse = 1.0f / unit;
#pragma unroll
  for (float& x : s) x *= inverse;
}

// Columns `column` to `column` + 63 of sixteen rows of a gradient. add(o, flags, unit, bad, all, skipped): their sums,
// or the team's warp's part of them. It ends once all of `bad` are right as they stand. Without `all` it skips what
// brings no NaN and no infinity, and says so.
template <i32 kDim, class Place, class Add>
DEV void repair_span(void* to, const Place& place, u32 rows, i32 column, const RepairTeam& team, const Add& add) {
  const i32 lane = team.lane();
  const u32 bad = lost_elements<kDim>(to, place, rows, column, lane);
  if (!__any_sync(kAll, bad != 0)) return;
#pragma unroll 1
  for (bool all = false;; all = true) {
    Output o = {};
    u32 flags = 0;
    float unit = 1.0f;
    bool skipped = false;
    add(o, flags, unit, bad, all, skipped);
    u32 right = flags | lost_sums(o);
    team.tell(flags, right, skipped);
    if (!__any_sync(kAll, (bad & ~right) != 0)) return;
    if (skipped) continue;
    team.join(o, unit);
    if (all_right(bad, o, flags)) return;
    if (team.warp == 0) store_elements(to, place, o, flags, unit, bad, column);
    return;
  }
}

}  // namespace onepass::fallback
