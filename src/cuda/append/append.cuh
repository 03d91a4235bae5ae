// New keys and values to the ends of their sequences in a cache, or to slots, keys and queries rotated on the way. A
// thread for each part of a row: two runs of elements that are rotated with each other, or one that is copied. Nothing
// is shared, so a token whose place is out of range is just left out.
#pragma once
#include "cuda/append/append.hpp"
#include "cuda/device/e4m3.cuh"
#include "cuda/device/formats.cuh"

#include "algebra/rotary.hpp"

namespace onepass {

// Elements side by side in memory.
template <ScalarType type, i32 count>
struct Run {
  using Format = typename ElementOf<type>::Format;
  using Raw = typename Format::Raw;
  static constexpr i32 kBytes = count * bytes_of(type), kPiece = kBytes < 16 ? kBytes : 16;
  u32 word[ceil_div(kBytes, 4)];

  DEV void load(const void* base, i64 at) {
    const Raw* const from = static_cast<const Raw*>(base) + at;
    if constexpr (kBytes == 2) {
      word[0] = *reinterpret_cast<const u16*>(from);
    } else {
#pragma unroll
      for (i32 i = 0; i < kBytes / kPiece; ++i) {
        const auto piece = reinterpret_cast<const Bytes<kPiece>*>(from)[i];
#pragma unroll
        for (i32 w = 0; w < kPiece / 4; ++w) word[i * (kPiece / 4) + w] = piece.word[w];
      }
    }
  }
  DEV void store(void* base, i64 at) const {
    Raw* const to = static_cast<Raw*>(base) + at;
    if constexpr (kBytes == 2) {
      *reinterpret_cast<u16*>(to) = static_cast<u16>(word[0]);
    } else {
#pragma unroll
      for (i32 i = 0; i < kBytes / kPiece; ++i) {
        Bytes<kPiece> piece;
#pragma unroll
        for (i32 w = 0; w < kPiece / 4; ++w) piece.word[w] = word[i * (kPiece / 4) + w];
        reinterpret_cast<Bytes<kPiece>*>(to)[i] = piece;
      }
    }
  }
  DEV float operator[](i32 i) const {
    if constexpr (bytes_of(type) == 4)
      return __uint_as_float(word[i]);
    else
      return Format::unpack(static_cast<Raw>(word[i / 2] >> i % 2 * 16));
  }
  DEV void set(const float (&x)[count]) {
#pragma unroll
    for (i32 i = 0; i < count; ++i) {
      if constexpr (bytes_of(type) == 4)
        word[i] = __float_as_uint(x[i]);
      else if constexpr (count == 1)
        word[0] = Format::round(x[0]);
      else if (i % 2 == 0)
        word[i / 2] = Format::pack(x[i], x[i + 1]);
    }
  }
};
using DataRun = Run<append_config.data, append_config.at_once>;

// Where a token comes from and where it goes: coordinates for the strides of AppendParams.
struct AppendPlace {
  i32 batch, token, place, in_place;  // place: batch entry or page of the cache; in_place: token of it
  u32 key, position;                  // position: its row of cos and sin
  bool rotated, cached;               // whether its q is written, and its k and v

  DEV i64 source(const long long (&stride)[3], i32 head) const {
    return batch * stride[0] + head * stride[1] + token * stride[2];
  }
  DEV i64 target(const long long (&stride)[3], i32 head) const {
    return place * stride[0] + head * stride[1] + in_place * stride[2];
  }
};

DEV i64 number_at(const void* numbers, bool wide, i64 at) {
  return wide ? static_cast<const long long*>(numbers)[at] : static_cast<const int*>(numbers)[at];
}

// The place of token n by its slot. A negative slot and one behind the cache are large without a sign.
DEV AppendPlace slot_of(const AppendParams& p, i32 n) {
  AppendPlace x{};
  x.token = n;
  x.rotated = true;
  if constexpr (append_config.rotates()) {
    const auto position = static_cast<u64>(number_at(p.positions_of, p.wide_positions, n * p.position_stride));
    x.rotated = position < static_cast<u64>(p.positions);
    x.position = static_cast<u32>(position);
  }
  const auto slot = static_cast<u64>(number_at(p.slots, p.wide_slots, n * p.slot_stride));
  x.cached = x.rotated && slot < static_cast<u64>(p.capacity);
  if (!x.cached) return x;
  x.key = static_cast<u32>(slot);
  x.place = static_cast<i32>(x.key / static_cast<u32>(p.page_size));
  x.in_place = static_cast<i32>(x.key - static_cast<u32>(x.place) * static_cast<u32>(p.page_size));
  return x;
}

// The place of token n, counted over all sequences.
DEV AppendPlace place_of(const AppendParams& p, i32 n) {
  if constexpr (append_config.slots) return slot_of(p, n);
  AppendPlace x{};
  i32 in_sequence = n;
  if constexpr (append_config.packed) {
    i32 last = p.batch;  // the last sequence that does not begin behind n: those before it may be empty
    while (last - x.batch > 1) {
      const i32 middle = (x.batch + last) / 2;
      (p.cu[middle * p.cu_stride] <= n ? x.batch : last) = middle;
    }
    in_sequence = n - p.cu[x.batch * p.cu_stride];
    x.token = n;
    x.cached = in_sequence >= 0 && n < p.cu[(x.batch + 1) * p.cu_stride];
  } else {
    x.batch = n / p.seq_new;
    x.token = in_sequence = n - x.batch * p.seq_new;
    x.cached = true;
  }
  const i32 used = p.seqused[x.batch * p.seqused_stride];
  x.key = x.position = static_cast<u32>(used) + static_cast<u32>(in_sequence);  // below 2^32 if used is not negative
  x.cached = x.cached && used >= 0 && x.key < p.capacity && (!append_config.rotates() || x.key < p.positions);
  x.place = x.batch;
  x.in_place = static_cast<i32>(x.key);
  if constexpr (append_config.paged) {
    if (!x.cached) return x;
    const u32 entry = x.key / static_cast<u32>(p.page_size);
    x.place = p.page_table[x.batch * p.table_stride[0] + entry * p.table_stride[1]];
    x.in_place = static_cast<i32>(x.key - entry * static_cast<u32>(p.page_size));
    x.cached = static_cast<u32>(x.place) < static_cast<u32>(p.pages);
  }
  x.rotated = x.cached;  // a token that is out of range is left out whole
  return x;
}

// Elements as they are stored: e4m3 divided by their factor as divided() of problem/append says. A quotient saturates;
// an infinity becomes NaN.
template <ScalarType to_type, i32 count>
DEV void store_run(const float (&x)[count], void* to, i64 at, float factor) {
  if constexpr (to_type == ScalarType::e4m3) {
    float y[count];
#pragma unroll
    for (i32 i = 0; i < count; ++i) y[i] = (x[i] == 0.0f ? x[i] : x[i] / factor) + (x[i] - x[i]);
    unsigned char* const bytes = static_cast<unsigned char*>(to) + at;
    if constexpr (count == 1) {
      *bytes = static_cast<unsigned char>(to_e4m3(y[0], 0.0f, 0.0f, 0.0f));
    } else {
      Bytes<count> run;
#pragma unroll
      for (i32 i = 0; i < count; i += 4) run.word[i / 4] = to_e4m3(y[i], y[i + 1], y[i + 2], y[i + 3]);
      *reinterpret_cast<Bytes<count>*>(bytes) = run;
    }
  } else {
    Run<to_type, count> run;
    run.set(x);
    run.store(to, at);
  }
}

template <ScalarType to_type>
DEV void copy_part(const void* from, i64 from_at, void* to, i64 to_at, float factor) {
  DataRun x;
  x.load(from, from_at);
  if constexpr (to_type == append_config.data) {
    x.store(to, to_at);
  } else {
    float number[append_config.at_once];
#pragma unroll
    for (i32 i = 0; i < append_config.at_once; ++i) number[i] = x[i];
    store_run<to_type>(number, to, to_at, factor);
  }
}

// A row of k or q as its parts are rotated: where it begins in the two tensors, which may be one, and the token's row
// of cos and sin. A part reads all that it writes before it writes.
struct RotatedRow {
  const void* from;
  void* to;
  i64 from_at, to_at, cos_at, sin_at;
  float factor;
};

// The pairs (i, i + apart) for `count` neighbouring i.
template <ScalarType data, ScalarType to_type, ScalarType table, i32 count>
DEV void rotate_halves(const AppendParams& p, const RotatedRow& row, i32 pair, i32 apart) {
  Run<table, count> cos, sin;
  Run<data, count> x, y;
  cos.load(p.cos, row.cos_at + pair * p.cos_stride[1]);
  sin.load(p.sin, row.sin_at + pair * p.sin_stride[1]);
  x.load(row.from, row.from_at + pair);
  y.load(row.from, row.from_at + apart + pair);
  float turned_x[count], turned_y[count];
#pragma unroll
  for (i32 i = 0; i < count; ++i) {
    const auto r = rotated(RotaryPair<float>{x[i], y[i]}, cos[i], sin[i]);
    turned_x[i] = r.x, turned_y[i] = r.y;
  }
  store_run<to_type>(turned_x, row.to, row.to_at + pair, row.factor);
  store_run<to_type>(turned_y, row.to, row.to_at + apart + pair, row.factor);
}

// The pairs (2i, 2i + 1) for `count` neighbouring i, in runs of `together` elements.
template <ScalarType data, ScalarType to_type, ScalarType table, i32 count, i32 together>
DEV void rotate_interleaved(const AppendParams& p, const RotatedRow& row, i32 pair) {
  constexpr i32 kRuns = 2 * count / together;
  Run<table, count> cos, sin;
  Run<data, together> x[kRuns];
  cos.load(p.cos, row.cos_at + pair * p.cos_stride[1]);
  sin.load(p.sin, row.sin_at + pair * p.sin_stride[1]);
#pragma unroll
  for (i32 i = 0; i < kRuns; ++i) x[i].load(row.from, row.from_at + 2 * pair + i * together);
  float turned[kRuns][together];
#pragma unroll
  for (i32 i = 0; i < count; ++i) {
    const i32 a = 2 * i, b = a + 1;
    const auto r =
        rotated(RotaryPair<float>{x[a / together][a % together], x[b / together][b % together]}, cos[i], sin[i]);
    turned[a / together][a % together] = r.x;
    turned[b / together][b % together] = r.y;
  }
#pragma unroll
  for (i32 i = 0; i < kRuns; ++i)
    store_run<to_type>(turned[i], row.to, row.to_at + 2 * pair + i * together, row.factor);
}

// Part `part` of a row of k or q.
template <ScalarType table, ScalarType to_type>
DEV void rotate_part(const AppendParams& p, u32 position, i32 part, const void* from, i64 from_at, void* to, i64 to_at,
                     float factor) {
  constexpr AppendConfig c = append_config;
  if constexpr (table != ScalarType::none) {
    if (part < p.rotated) {
      const RotatedRow row{from, to, from_at, to_at, position * p.cos_stride[0], position * p.sin_stride[0], factor};
      const i32 pair = part * c.pairs();
      if constexpr (c.interleaved)
        rotate_interleaved<c.data, to_type, table, c.pairs(), c.at_once>(p, row, pair);
      else
        rotate_halves<c.data, to_type, table, c.pairs()>(p, row, pair, p.rotary_dim / 2);
      return;
    }
  }
  const i32 d = p.rotary_dim + (part - p.rotated) * c.at_once;
  copy_part<to_type>(from, from_at + d, to, to_at + d, factor);
}

// The scale of the block of 128 keys that contains the token, for one head.
DEV float factor_of(const AppendPlace& x, const float* factors, const long long (&stride)[3], i32 head) {
  if constexpr (append_config.cache != ScalarType::e4m3) return 1.0f;
  return factors ? factors[x.batch * stride[0] + head * stride[1] + x.key / 128 * stride[2]] : 1.0f;
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kAppendThreads)
    append_kv(const __grid_constant__ onepass::AppendParams p) {
  using namespace onepass;
  const i64 step = static_cast<i64>(gridDim.x) * kAppendThreads;
  for (i64 i = static_cast<i64>(blockIdx.x) * kAppendThreads + threadIdx.x; i < p.all_items; i += step) {
    const i32 token = static_cast<i32>(i / p.items), of_row = p.rotated + p.copied;
    i32 item = static_cast<i32>(i - static_cast<i64>(token) * p.items);
    const AppendPlace x = place_of(p, token);
    const bool is_q = item >= p.heads_kv * (of_row + p.values);
    if (!(is_q ? x.rotated : x.cached)) continue;
    if (item < p.heads_kv * of_row) {
      const i32 head = item / of_row;
      rotate_part<append_config.table, append_config.cache>(
          p, x.position, item - head * of_row, p.k_new, x.source(p.k_new_stride, head), p.k, x.target(p.k_stride, head),
          factor_of(x, p.k_descale, p.k_descale_stride, head));
    } else if (!is_q) {
      item -= p.heads_kv * of_row;
      const i32 head = item / p.values, d = (item - head * p.values) * append_config.at_once;
      copy_part<append_config.cache>(p.v_new, x.source(p.v_new_stride, head) + d, p.v, x.target(p.v_stride, head) + d,
                                     factor_of(x, p.v_descale, p.v_descale_stride, head));
    } else {
      item -= p.heads_kv * (of_row + p.values);
      const i32 head = item / of_row;
      rotate_part<append_config.table, append_config.data>(p, x.position, item - head * of_row, p.q,
                                                           x.source(p.q_stride, head), p.q_out,
                                                           x.source(p.q_out_stride, head), 1.0f);
    }
  }
}
