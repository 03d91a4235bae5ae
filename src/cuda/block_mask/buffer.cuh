// A buffer of a mask_mod as interval::in_buffer() reads it.
#pragma once
#include "cuda/attention/scores/mods.cuh"

#include "expression/interval.hpp"

namespace onepass {

// Elements before a row of the last dimension; `row` counts rows over all other dimensions.
DEV i64 row_offset(const ModBufferView& view, i32 rank, i64 row) {
  i64 at = 0;
  for (i32 d = rank - 2; d >= 0; --d) {
    const i64 size = static_cast<i64>(view.last[d]) + 1;
    at += row % size * view.stride[d];
    row /= size;
  }
  return at;
}

template <class Element>
struct BoundedBuffer {
  const ModBufferView& view;
  const interval::Levels& of;
  i32 rank;

  DEV const interval::Levels& levels() const { return of; }
  DEV i64 last(i32 d) const { return view.last[d]; }
  DEV interval::Bounds element(i64 row, i64 i) const {
    const i64 at = row_offset(view, rank, row) + i * view.stride[rank - 1];
    return interval::value(Element::unpack(static_cast<const typename Element::Raw*>(view.data)[at]));
  }
};

}  // namespace onepass
