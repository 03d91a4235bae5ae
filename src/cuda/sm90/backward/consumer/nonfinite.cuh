// Calls with values that are not finite (attention/backward/careful.cuh). Scores and dP are sums of their own for each
// pair, and weights and dS of hidden pairs are set to 0, so what Q, K, V, dO, O and the statistics hold stays in the
// pairs that see it. dV += P^T dO and dK += dS^T Q sum over pairs: there a hidden 0 meets an element that is not
// finite. Where every row of a block sees every key of the tile, nothing is hidden. In other blocks, between first and
// second use, zeros take the places of these elements in shared memory, and bits tell where they were:
//
//   dV_j[c] becomes NaN if a row i that sees key j has a bit at column c.
//   dK_j needs that only behind a softcap or a score_mod. Otherwise a score of a query that is not finite is NaN or
//   infinite, so P, dS and the whole row of dK are NaN, or it is -inf and the pair is hidden.
//
// dQ = dS K keeps K as it is. If some key is not finite, or dS does not fit its type, the pairwise fallback stays.
#pragma once
#include "cuda/device/tma.cuh"

#include "cuda/sm90/backward/consumer/weights.cuh"
#include "cuda/sm90/backward/epilogue.cuh"

namespace onepass::sm90 {

// Barriers of the block's threads by number; 0 is __syncthreads.
enum NamedBarrier : u32 { kRowsUsed = 1 };

constexpr bool kMarksDk = marks_dk(features);
constexpr u32 kBitWords = kBlockM / 16;  // of two columns: sixteen rows of the one, sixteen of the other

// Sets the elements of a stage of `blocks` x 64 columns that are not finite to 0; tells whether this thread has found
// any. kept: [two columns][kBitWords].
template <u32 blocks, bool keeps>
DEV bool clear_nonfinite(u32 stage, u32 kept) {
  bool found = false;
#pragma unroll 1
  for (u32 i = opaque_thread() - kGroupThreads; i < blocks * 32 * kBitWords; i += kConsumerWarps * 32) {
    const u32 word = i % 32, block = i / 32 % blocks, part = i / (32 * blocks);
    u32 bits = 0;
#pragma unroll 8
    for (u32 row = 0; row < 16; ++row) {
      const u32 at = swizzled(stage + block * (kBlockM * kBlockColumnBytes), 16 * part + row, word / 4) + word % 4 * 4;
      const u32 x = static_cast<u32>(load_word(at)), nan = Element::times_zero_plus(x, 0) & 0x7fff7fff;
      if (nan == 0) continue;
      const u32 low = (nan & 0xffff) != 0, high = nan >> 16 != 0;
      store_word(at, static_cast<i32>(x & (low ? 0xffff0000u : ~0u) & (high ? 0xffffu : ~0u)));
      bits |= (low | high << 16) << row;
    }
    if constexpr (keeps) store_word(kept + ((block * 32 + word) * kBitWords + part) * 4, static_cast<i32>(bits));
    found = found || bits != 0;
  }
  return found;
}

// A bit for each of N sums of a lane, whose gradient becomes NaN when it has been stored. (Sums belong to the products:
// ptxas would let no two run at once, or spill, if anything else wrote there.) They lie in shared memory or in the
// workspace, where they are valid if a word of the warp in shared memory is not 0: no registers, and one load for each
// tile.
template <int N>
struct Marks {
  static constexpr i32 kWords = ceil_div(N, 32);
  static constexpr bool kStored = stores_marks(features, config);
  const BackwardParams& p;
  const SharedMemory& memory;
  const u32 part;  // 1: of a second kind of sums

  DEV void start() const {
    store_word(marked(), 0);
    __syncwarp();
  }
  DEV void add(const u32 (&more)[kWords]) const {
    const u32 before = static_cast<u32>(load_word(marked()));
    if constexpr (kStored) {
      static_assert(N <= 32);
      store_word(marked(), static_cast<i32>(before | more[0]));
    } else {
#pragma unroll
      for (i32 i = 0; i < kWords; ++i) word(i) = before == 0 ? more[i] : more[i] | word(i);
      __syncwarp();
      store_word(marked(), 1);
      __syncwarp();
    }
  }
  // NaN over what the warp has stored of a gradient (store_gradient). rows: the warp's first, how many exist.
  template <int dim>
  DEV void put(void* base, const long long (&stride)[3], const KeyTile& x, i32 key) const {
    u32 bits = static_cast<u32>(load_word(marked()));
    if (!warp_any(bits != 0)) return;
    using Raw = Gradient::Raw;
    const u32 lane = opaque_thread() % 32;
    __syncwarp();  // its lanes have stored
#pragma unroll 1
    for (i32 i = 0; i < N; ++i) {
      if (!kStored && i % 32 == 0) bits = word(i / 32);
      const i32 column = column_of(i, lane % 4), row = key + static_cast<i32>(lane / 4) + i / 2 % 2 * 8;
      if ((bits >> i % 32 & 1) == 0 || column >= dim || row >= x.seq_k) continue;
      static_cast<Raw*>(
          base)[x.map_batch * stride[0] + x.head * stride[1] + static_cast<i64>(x.k_begin + row) * stride[2] + column] =
          Gradient::round(__uint_as_float(0x7fffffff));
    }
    __syncwarp();
    start();
  }

 private:
  static DEV u32 lane_of_all() { return opaque_thread() - kGroupThreads; }
  DEV u32 marked() const {
    return memory.marked() + 4 * (kStored ? part * kMarkLanes + lane_of_all() : lane_of_all() / 32 * 2 + part);
  }
  DEV u32& word(i32 i) const {
    return p.marks[(blockIdx.x * kMarkWords + part * (kMarkWords / 2) + i) * kMarkLanes + lane_of_all()];
  }
};

// The rows that see each of a lane's two keys, in the order of clear_nonfinite's bits, for both columns.
struct SeenRows {
  u32 of[2][kBitWords];
  // word(i): weights 2 i and 2 i + 1 in 16 bits, of which hidden ones are negative.
  template <class Word>
  DEV explicit SeenRows(const Word& word) {
    const u32 quad = threadIdx.x % 4;
#pragma unroll
    for (u32 n = 0; n < 2 * kBitWords; ++n) {
      const u32 a = ~word(n / 2 * 4 + n % 2), b = ~word(n / 2 * 4 + 2 + n % 2);  // rows 0 to 7, 8 to 15
      u32 bits = ((a >> 15 & 1) | a >> 31 << 1 | (b >> 15 & 1) << 8 | b >> 31 << 9) << 2 * quad;
      bits |= bits << 16;
      bits |= __shfl_xor_sync(0xffffffffu, bits, 1);
      of[n % 2][n / 2] = bits | __shfl_xor_sync(0xffffffffu, bits, 2);
    }
  }
  // Marks the sums of columns that a key sees bits of.
  template <int N>
  DEV void mark(const Marks<N>& marks, u32 kept) const {
    const u32 quad = threadIdx.x % 4;
    u32 more[ceil_div(N, 32)] = {};
#pragma unroll
    for (u32 g = 0; g < N / 4; ++g) {
      u32 hit[2] = {0, 0};
#pragma unroll
      for (u32 i = 0; i < kBitWords; i += 4) {
        u32 x[4];
        load_four(kept + ((4 * g + quad) * kBitWords + i) * 4, x[0], x[1], x[2], x[3]);
#pragma unroll
        for (u32 e = 0; e < 4; ++e) hit[0] |= x[e] & of[0][i + e], hit[1] |= x[e] & of[1][i + e];
      }
#pragma unroll
      for (u32 e = 0; e < 4; ++e)
        if (hit[e / 2] >> e % 2 * 16 & 0xffff) more[g / 8] |= 1u << (4 * g + e) % 32;
    }
    marks.add(more);
  }
};

// By all consumers, when nothing is under way: the block's rows at `q` and `dout` as second operands, if a pair of them
// and the tile's keys is hidden. mark() is called when the bits are there.
template <class Mark>
DEV void separate_rows(bool some_hidden, u32 q, u32 dout, u32 kept, const Mark& mark) {
  constexpr u32 kAll = kConsumerWarps * 32;
  if (!bar_any(kRowsUsed, kAll, some_hidden)) return;  // the rows' first products are done
  const bool in_dout = clear_nonfinite<kVBlocks, true>(dout, kept),
             in_q = clear_nonfinite<kQkBlocks, kMarksDk>(q, kept + bits_bytes(features.dim_v, config.block_q));
  async_proxy_fence();
  if (!bar_any(kRowsUsed, kAll, in_dout || (kMarksDk && in_q))) return;
  mark();
  bar_sync(kRowsUsed, kAll);  // the bits' place is free
}
// weights: in 16 bits, of which hidden ones are negative.
template <int N>
DEV bool has_hidden(const u32 (&weights)[N]) {
  u32 signs = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) signs |= weights[i];
  return (signs & 0x80008000) != 0;
}

// By all consumers: tells the post kernel of keys that are not finite. K is its own 64 columns x kBlockN keys, and
// more.
DEV void look_through_keys(const BackwardParams& p, u32 stage) {
  if constexpr (!backward_features.dq) return;
  u32 probe = 0;
#pragma unroll 1
  for (u32 i = (opaque_thread() - kGroupThreads) * 16; i < static_cast<u32>(own_keys_bytes(features, config));
       i += kConsumerWarps * 32 * 16) {
    u32 x[4];
    load_four(stage + i, x[0], x[1], x[2], x[3]);
#pragma unroll
    for (const u32 word : x) probe = Element::times_zero_plus(word, probe);
  }
  if ((probe & 0x7fff7fff) != 0) atomicOr(&p.notes->found, static_cast<u32>(kKeysNotFinite));
}
// True for numbers that fp16 has no place for though fp32 has.
template <int N>
DEV bool overflows(const float (&x)[N]) {
  if constexpr (features.input != ScalarType::f16) return false;
  bool any = false;
#pragma unroll
  for (const float y : x) any = any || (fabsf(y) >= 65520.0f && is_finite(y));
  return any;
}

}  // namespace onepass::sm90
