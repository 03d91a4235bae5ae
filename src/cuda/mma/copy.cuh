// Tiles of tokens of one head on their way from global to shared memory.
#pragma once
#include "cuda/device/copy_async.cuh"

#include "cuda/mma/tile.cuh"

namespace onepass::mma {

// As copy_chunk, through registers.
template <bool kWhole, i32 kElement = kElementBytes>
DEV void move_chunk(u32 to, const char* from, i32 bytes) {
  u32 word[4] = {};
  if constexpr (config.copy_bytes == 16 && kWhole) {
    if (bytes > 0) {
      const auto x = *reinterpret_cast<const Bytes<16>*>(from);
#pragma unroll
      for (i32 i = 0; i < 4; ++i) word[i] = x.word[i];
    }
  } else if constexpr (kElement == 4) {
#pragma unroll
    for (i32 i = 0; i < 4; ++i) word[i] = 4 * i < bytes ? reinterpret_cast<const u32*>(from)[i] : 0;
  } else if constexpr (kElement == 1) {
#pragma unroll
    for (i32 i = 0; i < 16; ++i)
      word[i / 4] |= i < bytes ? static_cast<u32>(static_cast<unsigned char>(from[i])) << i % 4 * 8 : 0;
  } else {
#pragma unroll
    for (i32 i = 0; i < 8; i += 2) {
      const auto element = [&](i32 e) -> u32 { return 2 * e < bytes ? reinterpret_cast<const u16*>(from)[e] : 0; };
      word[i / 2] = element(i) | element(i + 1) << 16;
    }
  }
  store_four(to, word[0], word[1], word[2], word[3]);
}

// One 16-byte chunk of shared memory from `bytes` bytes of global memory and zeros, in copies as large as alignment
// allows; kWhole: bytes is 16 or at most 0. cp.async knows 4, 8 and 16 bytes; copies of 1 and 2 pass through registers,
// element by element, and are there at once.
template <bool kWhole, i32 kElement = kElementBytes>
DEV void copy_chunk(u32 to, const char* from, i32 bytes) {
  constexpr i32 kCopyBytes = config.copy_bytes;
  if constexpr (kCopyBytes >= 4) {
#pragma unroll
    for (i32 at = 0; at < 16; at += kCopyBytes) {
      if constexpr (kWhole)
        copy_async<kCopyBytes>(to + at, from + at, bytes > 0);
      else
        copy_async_part<kCopyBytes>(to + at, bytes > at ? from + at : from, min(max(bytes - at, 0), kCopyBytes));
    }
  } else {
    move_chunk<kWhole, kElement>(to, from, bytes);
  }
}

// rows x dim elements, padded with zeros to a multiple of sixteen elements a row, for each warp that shares the rows;
// tokens past the sequence are zeros, since whatever they hold would meet weights of 0. A thread copies the same chunks
// of every kStep-th row. Token 0 of K and V lies where KeyValueView says; the others follow at one stride, or each(..)
// reads where every one of them is.
template <i32 rows, i32 dim, i32 pitch, i32 unrolled = rows>
struct TileCopy {
  static constexpr i32 kBytes = dim * kElementBytes, kChunks = round_up(dim, 16 * kShare) * kElementBytes / 16;
  static constexpr i32 kAcross = kChunks <= 2    ? 2
                                 : kChunks <= 4  ? 4
                                 : kChunks <= 8  ? 8
                                 : kChunks <= 16 ? 16
                                 : kChunks <= 32 ? 32
                                                 : 64;  // threads along a row
  static constexpr i32 kStep = kThreads / kAcross;
  u32 from;                       // where in shared memory the address of token 0 lies
  const long long& token_stride;  // elements; a parameter: neither takes registers between two copies
  i32 tokens;                     // of the sequence

  DEV void operator()(u32 to, i32 first) const {
    copy(to, first, [&] { return load_address(from); });
  }
  DEV void operator()(u32 to, i32 first, const char* token_0) const {
    copy(to, first, [&] { return token_0; });
  }

  // Shared memory has the address of each row at `rows_at`; null: zeros. A few are read at a time and waited for once.
  DEV void each(u32 to, u32 rows_at) const {
    constexpr i32 kAtOnce = 4;
#pragma unroll
    for (i32 across = 0; across < kChunks; across += kAcross) {
      const i32 thread = static_cast<i32>(opaque_thread()), row = thread / kAcross, chunk = across + thread % kAcross;
      const i32 bytes = bytes_of(across, chunk);
      if (kChunks < across + kAcross && chunk >= kChunks) return;
#pragma unroll(unrolled)
      for (i32 i = 0; i < ceil_div(rows, kStep); i += kAtOnce) {
        const char* known[kAtOnce];
#pragma unroll
        for (i32 e = 0; e < kAtOnce; ++e) {
          const i32 r = row + (i + e) * kStep;
          known[e] = load_address(rows_at + 8 * min(r, rows - 1));
        }
#pragma unroll
        for (i32 e = 0; e < kAtOnce; ++e) {
          const i32 r = row + (i + e) * kStep;
          if (r >= rows) break;
          const u64 piece =
              reinterpret_cast<u64>(known[e]) + chunk * 16;  // of integers: nothing may be added to a null pointer
          copy_chunk<kBytes % 16 == 0>(to + swizzled(r, chunk, pitch), reinterpret_cast<const char*>(piece),
                                       known[e] ? bytes : 0);
        }
      }
    }
  }

 private:
  // Those of a row that a chunk has, of kAcross chunks from `across` on; at most 0 behind its end.
  static DEV i32 bytes_of(i32 across, i32 chunk) {
    return kBytes >= 16 * (across + kAcross) ? 16 : min(kBytes - chunk * 16, 16);
  }
  template <class Address>
  DEV void copy(u32 to, i32 first, const Address& token_0) const {
#pragma unroll
    for (i32 across = 0; across < kChunks; across += kAcross) {
      const i32 thread = static_cast<i32>(opaque_thread()), row = thread / kAcross, chunk = across + thread % kAcross;
      const i64 stride = token_stride * kElementBytes;
      const char* at = token_0() + (first + row) * stride + chunk * 16;
      const i32 bytes = bytes_of(across, chunk);
      if (kChunks < across + kAcross && chunk >= kChunks) return;
#pragma unroll(unrolled)
      for (i32 i = 0; i < ceil_div(rows, kStep); ++i) {
        const i32 r = row + i * kStep;
        if (rows % kStep != 0 && r >= rows) break;
        const bool real = first + r < tokens;
        copy_chunk<kBytes % 16 == 0>(to + swizzled(r, chunk, pitch), at, real ? bytes : 0);
        at += kStep * stride;
      }
    }
  }
};

}  // namespace onepass::mma
