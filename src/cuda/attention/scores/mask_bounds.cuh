// Bounds of the elements of a buffer, for the interval arithmetic over a mask_mod (expression/interval.hpp).
// attention/mod_bounds.cpp writes the function of the mask's steps.
#pragma once
#include "cuda/attention/scores/mods.cuh"

#include "expression/interval.hpp"

namespace onepass::user {

using interval::Bounds;

constexpr i32 kMostRead = 1024;  // elements; of a larger range nothing is known

struct IntegerRange {
  i32 lo = 0x7fffffff, hi = -0x7fffffff - 1;
  DEV void add(i32 x) { lo = ::min(lo, x), hi = ::max(hi, x); }
  DEV Bounds bounds() const { return interval::between(lo, hi); }
};
struct NumberRange {
  float lo = -kNegInf, hi = kNegInf;
  bool nan = false;
  DEV void add(float x) {
    constexpr float kNormal = 1.2e-38f;  // what is smaller may be flushed to 0
    nan = nan || x != x;
    const bool tiny = fabsf(x) < kNormal;
    lo = fminf(lo, tiny ? fminf(x, 0.0f) : x), hi = fmaxf(hi, tiny ? fmaxf(x, 0.0f) : x);
  }
  DEV Bounds bounds() const { return {static_cast<double>(lo), static_cast<double>(hi), nan}; }
};
DEV IntegerRange range_of(i32) { return {}; }
DEV NumberRange range_of(float) { return {}; }

// The elements at indices within bounds; an index beyond the buffer reads the nearest.
template <class Element, int rank, class... Index>
DEV Bounds elements(const ModBufferView& view, Bounds any, Index... index) {
  static_assert(sizeof...(Index) == rank);
  const Bounds at[] = {index...};
  i32 count[rank];
  i64 all = 1, first = 0;
#pragma unroll
  for (int d = 0; d < rank; ++d) {
    const i32 last = view.last[d], lo = ::max(0, ::min(static_cast<i32>(at[d].lo), last)),
              hi = ::max(0, ::min(static_cast<i32>(at[d].hi), last));
    count[d] = hi - lo + 1;
    all *= count[d];
    first += lo * static_cast<i64>(view.stride[d]);
  }
  if (all > kMostRead) return any;
  const auto* const data = static_cast<const typename Element::Raw*>(view.data);
  auto range = range_of(Element::unpack(data[first]));
  const i32 length = count[rank - 1], rows = static_cast<i32>(all) / length;
  for (i32 row = 0; row < rows; ++row) {
    i64 offset = first;
    i32 rest = row;
#pragma unroll
    for (int d = rank - 2; d >= 0; --d) {
      offset += rest % count[d] * static_cast<i64>(view.stride[d]);
      rest /= count[d];
    }
#pragma unroll 8
    for (i32 i = 0; i < length; ++i)
      range.add(Element::unpack(data[offset + i * static_cast<i64>(view.stride[rank - 1])]));
  }
  return range.bounds();
}

}  // namespace onepass::user
