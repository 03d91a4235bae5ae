// The tiling of the MLA kernel and its shared memory: one definition for the host and the device half.
#pragma once
#include "cuda/decode/decode_config.hpp"

namespace onepass::decode {

// Head dims of absorbed multi-head latent attention: K is 512 latent columns and 64 rotary ones; V is the latent ones.
inline constexpr int kMlaQk = 576, kMlaV = 512;
inline constexpr int kMlaRows = 64, kMlaKeys = 64;  // of a CTA; of a tile
inline constexpr int kMlaConsumers = 256, kMlaThreads = kMlaConsumers + 128;

// The launch of merge.cuh: two times 128 threads, with 32 bytes each, and a flag for each row.
inline constexpr int kMlaMergeThreads = 256, kMlaMergeFlags = kMlaMergeThreads * 32,
                     kMlaMergeBytes = kMlaMergeFlags + kMlaRows * 4;

struct MlaConfig {
  int piece;      // tiles of a chunk of work, the same in every batch; 0: all CTAs get the same number
  int page_rows;  // keys that one load takes of a page; 0: K is not paged
  int producer_registers, consumer_registers;  // of a thread
  // Whether a warpgroup gathers keys by cp.async: a tile in pages of 16 is 36 boxes, in pages of 4 it would be 144, and
  // a tile's time is 1.7 us.
  ONEPASS_HD constexpr bool gathers() const { return page_rows > 0 && page_rows < 8; }
  ONEPASS_HD constexpr int key_rows() const { return page_rows > 0 ? page_rows : kMlaKeys; }  // of a load
  ONEPASS_FIELDS(MlaConfig, piece, page_rows, producer_registers, consumer_registers)
};

// Shared memory, in order: Q, two tiles of keys, the warpgroups' row states, the segment in hand and the line, what has
// happened to a row, barriers, with a tree the drafts that each row sees. Q and a tile are blocks of 64 columns, [9][64
// rows][128 bytes], swizzled.
struct MlaLayout {
  int q, keys, states, segment, line, flags, full, empty, trees, total;
};
inline constexpr int kMlaBlockBytes = kMlaRows * 128, kMlaTileBytes = kMlaQk / 64 * kMlaBlockBytes;
ONEPASS_HD constexpr MlaLayout mla_layout(bool tree) {
  MlaLayout l{};
  l.q = 0;
  l.keys = l.q + kMlaTileBytes;
  l.states = l.keys + 2 * kMlaTileBytes;
  l.segment = l.states + 2 * kMlaRows * 16;
  l.line = l.segment + 64;
  l.flags = l.line + 32;
  l.full = round_up(l.flags + 4 * (kMlaRows + 1), 16);
  l.empty = l.full + 4 * 8;
  l.trees = l.empty + 4 * 8;
  l.total = l.trees + (tree ? kMlaRows * 8 : 0);
  return l;
}

}  // namespace onepass::decode
