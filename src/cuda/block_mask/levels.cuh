// The levels of buffers (interval::Levels), for the bounds of the ranges that tiles read.
#pragma once
#include "cuda/attention/scores/mods.cuh"
#include "cuda/block_mask/block_mask.hpp"
#include "cuda/block_mask/buffer.cuh"

namespace onepass {

using interval::Bounds;

// A row of a buffer's last dimension. One loop for all types: a loop for each takes NVRTC ten seconds.
struct BufferRow {
  const BufferLevels& b;
  i64 first;

  DEV BufferRow(const BufferLevels& buffer, i64 row) : b(buffer), first(row_offset(b.view, b.rank, row)) {}
  template <class Element>
  DEV Bounds as(i64 at) const {
    return interval::value(Element::unpack(static_cast<const typename Element::Raw*>(b.view.data)[at]));
  }
  DEV Bounds element(i64 i) const {
    const i64 at = first + i * b.view.stride[b.rank - 1];
    switch (b.type) {
      case BufferType::f16: return as<F16>(at);
      case BufferType::bf16: return as<Bf16>(at);
      case BufferType::i32: return as<user::Int32>(at);
      case BufferType::boolean: return as<user::Bool>(at);
      default: return as<F32>(at);
    }
  }
  // As interval::group_of reads it.
  DEV Bounds element(i64, i64 i) const { return element(i); }
  DEV interval::Levels levels() const { return {nullptr, nullptr, b.rows, b.length, 0}; }
};

// The bounds of of(0) to of(count - 1), in every thread. A thread without one has the first, which changes nothing.
template <class Of>
DEV Bounds joined(i64 count, Bounds* shared, const Of& of) {
  const i32 thread = static_cast<i32>(threadIdx.x);
  Bounds own = of(thread < count ? thread : 0);
  for (i64 i = thread + kBlockMaskThreads; i < count; i += kBlockMaskThreads) own = interval::either(own, of(i));
  shared[thread] = own;
  __syncthreads();
  for (i32 half = kBlockMaskThreads / 2; half > 0; half /= 2) {
    if (thread < half) shared[thread] = interval::either(shared[thread], shared[thread + half]);
    __syncthreads();
  }
  const Bounds sum = shared[0];
  __syncthreads();
  return sum;
}

// The levels of a row above its groups of 16 elements.
DEV void write_levels(const BufferLevels& b, i64 row) {
  Bounds* level = b.groups;
  for (i64 groups = interval::groups_of(b.length); groups > 1;) {
    const i64 below = groups;
    const Bounds* const from = level + row * below;
    level += b.rows * below, groups = (groups + 1) / 2;
    for (i64 g = threadIdx.x; g < groups; g += kBlockMaskThreads)
      level[row * groups + g] = interval::group_of(from, below, g);
    __syncthreads();
  }
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kBlockMaskThreads)
    buffer_levels(const __grid_constant__ onepass::LevelParams p) {
  using namespace onepass;
  extern __shared__ __align__(16) unsigned char smem[];
  auto* const shared = reinterpret_cast<Bounds*>(smem);
  for (i64 unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
    i64 of = unit;
    i32 n = 0;
    for (i64 units; of >= (units = units_of(p.buffers[n], p.part)); ++n) of -= units;
    const BufferLevels& b = p.buffers[n];
    if (p.part == LevelPart::all) {
      const Bounds all = joined(b.rows, shared, [&](i64 row) { return b.row_bounds[row]; });
      if (threadIdx.x == 0) *b.all = all;
      continue;
    }
    if (p.part == LevelPart::levels && b.groups) {
      write_levels(b, of);
      continue;
    }
    if (p.part == LevelPart::levels) {
      const BufferRow row(b, of);
      const Bounds all = joined(b.length, shared, [&](i64 i) { return row.element(i); });
      if (threadIdx.x == 0) b.row_bounds[of] = all;
      continue;
    }
    const i64 groups = interval::groups_of(b.length), group = of * kBlockMaskThreads + threadIdx.x;
    if (group < b.rows * groups) {
      const i64 row = group / groups;
      b.groups[group] = interval::group_of(BufferRow(b, row), row, group % groups);
    }
  }
}
