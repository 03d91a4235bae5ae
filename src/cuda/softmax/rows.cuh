// Rows of numbers between global memory and registers, 16 bytes of what is read to a slot.
//
// Slots lie at multiples of 16 bytes of the tensor that is read first. The numbers of a row in front of its first slot
// and behind its last, up to 14, are spare: a thread takes one, or a few, of them by itself. Nothing outside a row is
// touched. Where neighbours are not neighbours in memory every number is taken by itself. Rows that are even and flat
// (SoftmaxConfig) need none of it, nor a division: their loads go out some 300 cycles earlier, of 5000 of a block.
#pragma once
#include "cuda/device/formats.cuh"
#include "cuda/device/shared.cuh"

#include "cuda/softmax/softmax_params.hpp"

namespace onepass {

constexpr SoftmaxConfig kC = softmax_config;
constexpr i32 kNumbers = kC.numbers(), kSlots = kC.slots, kThreads = kC.threads;

// f(i) for 0, 1, .. < n, i known to the compiler.
template <i32 i>
struct Known {
  static constexpr i32 value = i;
};
template <i32 n, i32 i = 0, class F>
DEV void for_known(const F& f) {
  if constexpr (i < n) f(Known<i>{}), for_known<n, i + 1>(f);
}

// kNumbers neighbours of a row, as they lie in memory.
template <ScalarType type>
struct Slot {
  using Format = typename ElementOf<type>::Format;
  using Raw = typename Format::Raw;
  static constexpr i32 kWords = kNumbers * bytes_of(type) / 4;
  u32 word[kWords];

  DEV float operator[](i32 i) const {
    if constexpr (Format::kPacked == 1)
      return __uint_as_float(word[i]);
    else
      return Format::unpack(static_cast<u16>(word[i / 2] >> i % 2 * 16));
  }
  template <i32 i>
  DEV float again() const {  // [i], for the second time: a number that is not kept as a float beside its word
    if constexpr (type == ScalarType::bf16)
      return unpack_bf16_again<i % 2>(word[i / 2]);
    else if constexpr (type == ScalarType::f16)
      return unpack_f16_again<i % 2>(word[i / 2]);
    else
      return (*this)[i];
  }
  DEV void put(i32 i, Raw x) {
    if constexpr (Format::kPacked == 1)
      word[i] = __float_as_uint(x);
    else
      word[i / 2] = i % 2 == 0 ? (word[i / 2] & 0xffff0000u) | x : (word[i / 2] & 0xffffu) | static_cast<u32>(x) << 16;
  }
  DEV void fill(float x) {
#pragma unroll
    for (i32 i = 0; i < kNumbers; ++i) put(i, Format::round(x));
  }
  // Two numbers at a time in 16 bits; NaNs give way.
  static DEV float largest(const Slot (&s)[kSlots]) {
    u32 most = s[0].word[0];
#pragma unroll
    for (i32 v = 0; v < kSlots; ++v)
#pragma unroll
      for (i32 i = v == 0 ? 1 : 0; i < kWords; ++i) most = Format::max(most, s[v].word[i]);
    if constexpr (Format::kPacked == 1) return __uint_as_float(most);
    return fmaxf(Format::unpack(static_cast<u16>(most)), Format::unpack(static_cast<u16>(most >> 16)));
  }
  DEV void pack(const float (&x)[kNumbers]) {
#pragma unroll
    for (i32 i = 0; i < kWords; ++i) {
      if constexpr (Format::kPacked == 1)
        word[i] = __float_as_uint(x[i]);
      else
        word[i] = Format::pack(x[2 * i], x[2 * i + 1]);
    }
  }
};

// Where the slots of a row, or of a piece of one, lie: slot g holds numbers head + g * kNumbers and on.
struct RowCut {
  i32 count, head, body;  // numbers; those in front of the slots; slots

  DEV bool has(i32 slot) const { return kC.full || slot < body; }
  DEV RowCut(u64 address, i32 bytes, i32 count) : count(count), head(0), body(ceil_div(count, kNumbers)) {
    if constexpr (kC.even) {
      body = count / kNumbers;
    } else if constexpr (kC.unit) {
      head = min(count, static_cast<i32>((16 - address % 16) % 16) / bytes);
      body = (count - head) / kNumbers;
    }
  }
  // The number that is a thread's k-th spare one; -1: none.
  DEV i32 spare(i32 thread, i32 k) const {
    const i32 i = k * kThreads + thread, j = i < head ? i : i + body * kNumbers;
    return kC.unit && j < count ? j : -1;
  }
};
constexpr i32 kSpare = kC.unit && !kC.even ? ceil_div(2 * (kNumbers - 1), kThreads) : 0;  // of a thread, at most

template <ScalarType type>
struct Row {
  using Format = typename Slot<type>::Format;
  using Raw = typename Slot<type>::Raw;
  const Raw* first;
  i64 step;
  RowCut cut;
  bool pieces;  // slots lie at multiples of 16 bytes, or of all they have

  DEV Row(const RowTensor& t, i64 at, const RowCut& cut)
      : first(static_cast<const Raw*>(t.data) + at), step(t.stride[3]), cut(cut) {
    constexpr u64 kBytes = Slot<type>::kWords < 4 ? 4 * Slot<type>::kWords : 16;
    pieces = kC.even || (kC.unit && reinterpret_cast<u64>(first + cut.head) % kBytes == 0);
  }
  DEV float number(i32 j) const { return Format::unpack(first[kC.unit ? j : j * step]); }
  DEV void put(i32 j, float x) const { const_cast<Raw*>(first)[kC.unit ? j : j * step] = Format::round(x); }

  // Elements outside the row become `outside`. lead: the cut is this tensor's.
  template <bool lead>
  DEV Slot<type> load(i32 g, float outside) const {
    Slot<type> s;
    const i32 from = cut.head + g * kNumbers;
    if (cut.has(g) && ((lead && kC.unit) || pieces)) {
      float w[4];
      load_global_plain(w, reinterpret_cast<const float*>(first + from));
#pragma unroll
      for (i32 i = 0; i < 4; ++i) s.word[i] = __float_as_uint(w[i]);
    } else {
      s.fill(outside);
      if constexpr (!lead || !kC.unit) {
#pragma unroll
        for (i32 i = 0; i < kNumbers; ++i)
          if (g < cut.body && from + i < cut.count) s.put(i, Format::round(number(from + i)));
      }
    }
    return s;
  }
  DEV void store(i32 g, const Slot<type>& s) const {
    if (!cut.has(g)) return;
    const i32 from = cut.head + g * kNumbers;
    if (pieces) {
      constexpr i32 kWords = Slot<type>::kWords, kAtOnce = kWords < 4 ? kWords : 4;
      u32* const at = reinterpret_cast<u32*>(const_cast<Raw*>(first) + from);
#pragma unroll
      for (i32 w = 0; w < kWords; w += kAtOnce) {
        u32 part[kAtOnce];
#pragma unroll
        for (i32 i = 0; i < kAtOnce; ++i) part[i] = s.word[w + i];
        store_global(at + w, part);
      }
    } else {
#pragma unroll
      for (i32 i = 0; i < kNumbers; ++i)
        if (kC.unit || from + i < cut.count) put(from + i, s[i]);
    }
  }
};

// The work of a CTA's thread: one piece of one row.
struct Task {
  u32 number, row;
  i32 piece;
  bool real;  // those behind the last row repeat it, and write nothing
  DEV explicit Task(const SoftmaxParams& p) : number(blockIdx.x), piece(0), real(true) {
    if constexpr (kC.rows() > 1) number = blockIdx.x * kC.rows() + threadIdx.x / kThreads;
    const u32 pieces = kC.part == SoftmaxPart::whole ? 1 : static_cast<u32>(p.pieces);
    if constexpr (kC.rows() > 1) {
      const u32 last = p.rows * pieces - 1;
      real = number <= last;
      number = min(number, last);
    }
    row = kC.part == SoftmaxPart::whole ? number : number / pieces;
    if constexpr (kC.part != SoftmaxPart::whole) piece = static_cast<i32>(number % pieces);
  }
};
DEV i32 thread_of_row() { return static_cast<i32>(kC.rows() > 1 ? threadIdx.x % kThreads : threadIdx.x); }
struct RowIndex {
  i64 batch, head, row;
  DEV RowIndex(const SoftmaxParams& p, u32 i) : batch(0), head(0), row(i) {
    if constexpr (!kC.flat) batch = i / p.seq / p.heads, head = i / p.seq % p.heads, row = i % p.seq;
  }
  DEV i64 in(const RowTensor& t) const {
    return kC.flat ? row * t.stride[2] : batch * t.stride[0] + head * t.stride[1] + row * t.stride[2];
  }
};

// ---- what the threads of a row add up

DEV float lanes_max(float x) {
#pragma unroll
  for (i32 step = (kThreads < 32 ? kThreads : 32) / 2; step > 0; step /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
DEV float lanes_sum(float x) {
#pragma unroll
  for (i32 step = (kThreads < 32 ? kThreads : 32) / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
// Logarithms refer to the maximum itself, without the rounding of a fused weight's reference.
DEV Step<float> reference_at(float m, float factor) {
  if constexpr (kC.log)
    return refer_exactly_to(m);
  else
    return refer_to(m, factor);
}
DEV SoftmaxState lanes_join(SoftmaxState s, float factor) {
  const float m = lanes_max(s.m);
  return {m, lanes_sum(s.l * moved(s.m, factor, reference_at(m, factor)))};
}
DEV SoftmaxState lanes_add(SoftmaxState s) { return {0.0f, lanes_sum(s.l)}; }

// Joins the states of all threads of the row in a fixed order, through kC.shared_bytes() at `shared`. A backward only
// adds.
DEV SoftmaxState row_join(u32 shared, SoftmaxState s, float factor) {
  const auto join = [&](SoftmaxState x) { return kC.backward ? lanes_add(x) : lanes_join(x, factor); };
  s = join(s);
  if constexpr (kThreads > 32) {
    constexpr u32 kWarps = kThreads / 32, kBytes = sizeof(SoftmaxState);
    const u32 lane = threadIdx.x % 32;
    if (lane == 0) store_pair(shared + threadIdx.x / 32 * kBytes, s.m, s.l);
    __syncthreads();
    float all[2] = {kC.backward ? 0.0f : kNegInf, 0.0f};
    if (lane < kWarps) load_pair(all, shared + (threadIdx.x / kThreads * kWarps + lane) * kBytes);
    s = join({all[0], all[1]});
  }
  return s;
}

}  // namespace onepass
