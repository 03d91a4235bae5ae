// What the host half of the AMX backend hands to the tile half: plain data, no behaviour, no headers beyond <cstdint>.
#pragma once
#include <cstdint>

namespace onepass::cpu::amx {

inline constexpr int kRows = 32;   // query rows of a block: two tiles of 16 columns
inline constexpr int kGroup = 32;  // keys that are packed together: two tiles of 16 keys, one tile of 32 values
inline constexpr int kBlocks = 4;  // row blocks of a task at most; they share each block of keys while it is in L2
inline constexpr int kKeys = 128;  // keys of a unit of work at most

inline constexpr int kLanes = 16;                  // rows of half a block: a vector, the columns of a tile
inline constexpr int kScoreHalf = kKeys * kLanes;  // from the scores of one half to the other's

inline constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

enum class Element : std::uint8_t { f32, f16, bf16 };

// Keys or values [keys][dim] bf16 of one head, to be packed into tiles.
struct PackTask {
  const std::uint16_t* from = nullptr;
  std::int64_t stride = 0;  // elements from one key to the next
  std::int64_t keys = 0;    // the rest of the last group of 32 becomes 0, and so do dims beyond `dim`
  int dim = 0;
  std::uint16_t* to = nullptr;  // [keys / 32][round_up(dim, 32) * 32]
};

// 32 packed (token, head) rows. Rows from `rows` on are padding: null pointers, and a key range that is never partial.
struct RowBlock {
  int rows = 0;
  const std::uint16_t* q[kRows];      // [dim_qk]
  void* out[kRows];                   // [dim_v]
  float* lse[kRows];                  // null if not wanted
  std::int64_t lo[kRows], hi[kRows];  // the keys a row sees by band and length
  std::int64_t first, last;           // keys that any row sees
  std::int64_t full_from, full_to;    // keys that every row sees
  const void* bias[kRows];            // [seq_k]
  const std::uint8_t* mask[kRows];    // [seq_k]
  std::int64_t position[kRows];       // on the key axis, for ALiBi
  float slope[kRows], sink[kRows];
  std::uint32_t token[kRows], head[kRows];  // coordinates of the dropout mask
};

// How dot products become scores; the same for every task of a problem.
struct ScoreSpec {
  float scale = 1.0f;                       // >= 0: the sign is packed into q
  float to_log2 = 1.0f, to_natural = 1.0f;  // of the scores that the softmax finds
  bool products = false;                    // these are the dot products themselves
  bool negate_q = false;
  float softcap = 0.0f;
  bool bias = false, mask = false, alibi = false, sinks = false;
  Element bias_type = Element::f32;
  std::int64_t bias_stride = 0, mask_stride = 0;  // elements from one key to the next
  float dropout_p = 0.0f;
  std::uint64_t seed = 0;

  bool plain() const { return products; }
};

// Memory of one worker, for `kBlocks` row blocks. The 32 query rows of a block are kept as two halves of 16, each a
// column of tiles: 1 KB in a row is what a tile load likes best.
struct Scratch {
  RowBlock* blocks;  // [kBlocks]
  std::uint32_t* q;  // [kBlocks][2][depth_qk / 2][16] pairs of bf16
  float* o;          // [kBlocks][2][depth_v][16]
  float* scores[2];  // [2][kKeys][16]; weights take the place of the scores they come from
};

struct AttendTask {
  const ScoreSpec* spec;
  Scratch scratch;
  int blocks;  // row blocks in scratch.blocks
  int dim_qk, dim_v;
  const std::uint16_t *k, *v;  // packed
  std::int64_t seq_k;
  Element out_type;
  std::uint32_t batch;                // coordinate of the dropout mask
  std::uint32_t not_finite[kBlocks];  // out: bit r is set if row r of the block has a value that is not finite
};

struct Kernels {
  void (*pack_keys)(const PackTask&);
  void (*pack_values)(const PackTask&);
  void (*attend)(AttendTask&);
};

}  // namespace onepass::cpu::amx
