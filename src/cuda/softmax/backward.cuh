// dx = scale * y (dy - sum dy y), or of a logarithm scale * (dy - e^y sum dy), of rows as softmax.cuh has them. Where y
// says that nothing was seen (0, or -inf) dx is 0 and dy is not used.
#pragma once
#include "cuda/softmax/rows.cuh"

namespace onepass {

using Numbers = Slot<kC.output>;
constexpr float kNothing = kC.log ? kNegInf : 0.0f;

DEV float term(float y, float dy) { return y == kNothing ? 0.0f : kC.log ? dy : y * dy; }
DEV float gradient(const SoftmaxParams& p, float y, float dy, float sum) {
  const float g = kC.log ? fmaf(-natural_weight(y), sum, dy) : y * (dy - sum);
  return y == kNothing ? 0.0f : p.scale * g;
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kC.block(), onepass::kC.resident() / onepass::kC.block())
    softmax_rows_backward(const __grid_constant__ onepass::SoftmaxParams p) {
  using namespace onepass;
  extern __shared__ __align__(128) unsigned char smem[];
  const i32 thread = thread_of_row();
  const Task task(p);
  const i32 from = task.piece * p.piece;
  const RowIndex index(p, task.row);

  const i64 at = index.in(p.x) + from * p.x.stride[3];
  const RowCut cut(reinterpret_cast<u64>(static_cast<const Numbers::Raw*>(p.x.data) + at), sizeof(Numbers::Raw),
                   kC.part == SoftmaxPart::whole ? p.n : min(p.piece, p.n - from));
  const Row<kC.output> y(p.x, at, cut), dy(p.dy, index.in(p.dy) + from * p.dy.stride[3], cut);
  const Row<kC.input> dx(p.result, index.in(p.result) + from * p.result.stride[3], cut);
  const i32 chunks = kC.kept ? 1 : ceil_div(cut.body, kSlots * kThreads);
  const auto slot_of = [&](i32 chunk, i32 v) { return (chunk * kSlots + v) * kThreads + thread; };

  Numbers a[kSlots], b[kSlots];
  const auto read = [&](i32 chunk) {
#pragma unroll
    for (i32 v = 0; v < kSlots; ++v) {
      a[v] = y.load<true>(slot_of(chunk, v), kNothing);
      b[v] = dy.load<false>(slot_of(chunk, v), 0.0f);
    }
  };
  float sum = 0.0f, spare_y[kSpare + 1], spare_dy[kSpare + 1];
  if constexpr (kC.kept) read(0);
#pragma unroll
  for (i32 k = 0; k < kSpare; ++k) {
    const i32 j = cut.spare(thread, k);
    spare_y[k] = j < 0 ? kNothing : y.number(j);
    spare_dy[k] = j < 0 ? 0.0f : dy.number(j);
  }
  if constexpr (kC.part != SoftmaxPart::finish) {
    for (i32 chunk = 0; chunk < chunks; ++chunk) {
      if constexpr (!kC.kept) read(chunk);
#pragma unroll
      for (i32 v = 0; v < kSlots; ++v)
#pragma unroll
        for (i32 i = 0; i < kNumbers; ++i) sum += term(a[v][i], b[v][i]);
    }
#pragma unroll
    for (i32 k = 0; k < kSpare; ++k) sum += term(spare_y[k], spare_dy[k]);
  } else {
    const SoftmaxState* const states = p.states + task.row * static_cast<u32>(p.pieces);
    for (i32 i = thread; i < p.pieces; i += kThreads) sum += states[i].l;
  }
  sum = row_join(shared_address(smem), {0.0f, sum}, 1.0f).l;
  if constexpr (kC.part == SoftmaxPart::states) {
    if (thread == 0 && task.real) p.states[task.number] = {0.0f, sum};
  } else {
    if (!task.real) return;
    for (i32 chunk = 0; chunk < chunks; ++chunk) {
      if constexpr (!kC.kept) read(chunk);
#pragma unroll
      for (i32 v = 0; v < kSlots; ++v) {
        float x[kNumbers];
        for_known<kNumbers>([&](auto i) {
          x[i.value] = gradient(p, a[v].template again<i.value>(), b[v].template again<i.value>(), sum);
        });
        Slot<kC.input> out;
        out.pack(x);
        dx.store(slot_of(chunk, v), out);
      }
    }
#pragma unroll
    for (i32 k = 0; k < kSpare; ++k)
      if (const i32 j = cut.spare(thread, k); j >= 0) dx.put(j, gradient(p, spare_y[k], spare_dy[k], sum));
  }
}
