// The interface between the host half of the AMX backend and its tile half: plain data.
#pragma once
#include <cstdint>
#include <span>

#include "algebra/ceil_div.hpp"
#include "algebra/mask.hpp"
#include "cpu/common/score_unit.hpp"
#include "expression/expression.hpp"
#include "problem/attention/key_value_view.hpp"
#include "problem/attention/score.hpp"

namespace onepass::cpu::amx {

inline constexpr int kRows = 32;   // query rows of a block: two tiles of 16 columns
inline constexpr int kGroup = 32;  // keys that are packed together: two tiles of 16 keys, one tile of 32 values
inline constexpr int kBlocks = 4;  // row blocks of a task at most; they share each block of keys while it is in L2
inline constexpr int kKeys = 128;  // keys of a unit of work at most

// One result per row (Problem::batch_invariant): a row's state is joined from the states of its splits of this many
// keys.
inline constexpr std::int64_t kJoinKeys = 1024;

inline constexpr int kLanes = 16;                  // rows of half a block: a vector, the columns of a tile
inline constexpr int kScoreHalf = kKeys * kLanes;  // from the scores of one half to the other's

// Packed values are finite: kernels/nonfinite-inl.h. The flags of a group of keys are a word for each dim, whose bit k
// says that the value of key k was not, after a word that joins them all.
inline constexpr std::int64_t flag_words(std::int64_t depth_v) { return depth_v + 1; }

// Keys or values [keys][dim] bf16 of one head, to be packed into tiles.
struct PackTask {
  const std::uint16_t* from = nullptr;
  std::int64_t stride = 0;  // elements from one key to the next
  std::int64_t keys = 0;    // the rest of the last group of 32 becomes 0, and so do dims beyond `dim`
  int dim = 0;
  std::uint16_t* to = nullptr;     // [keys / 32][round_up(dim, 32) * 32]
  std::uint32_t* flags = nullptr;  // of values: [keys / 32][flag_words]; null: they are packed as they are
};

// 32 packed (token, head) rows. Rows from `rows` on are padding: null pointers, and a key range that is never partial.
struct RowBlock {
  int rows = 0;
  const std::uint16_t* q[kRows];                        // [dim_qk]
  void* out[kRows];                                     // [dim_v]
  float *lse[kRows], *row_max[kRows], *entropy[kRows];  // null if not wanted
  std::int64_t lo[kRows], hi[kRows];                    // the keys visible to a row by band and length
  std::int64_t first, last;                             // keys visible to any row
  std::int64_t full_from, full_to;                      // keys visible to every row
  const void* bias[kRows];                              // [seq_k]
  const std::uint8_t* mask[kRows];                      // [seq_k]
  std::int64_t position[kRows];                         // on the key axis, for ALiBi
  float slope[kRows], sink[kRows];
  float factor[kRows];                      // of the row's products: AttendTask::scaled
  std::uint32_t token[kRows], head[kRows];  // coordinates of the dropout mask and a mask_mod
  const Tile* shown;                        // the groups of kGroup keys under a mask_mod; null: there is none
  std::int64_t shown_from;                  // the key at shown, a multiple of kGroup
};

// Memory of one worker, for `kBlocks` row blocks. The 32 query rows of a block are kept as two halves of 16, each a
// column of tiles: 1 KB in a row is what a tile load likes best.
struct Scratch {
  RowBlock* blocks;     // [kBlocks]
  std::uint32_t* q;     // [kBlocks][2][depth_qk / 2][16] pairs of bf16
  float* o;             // [kBlocks][2][depth_v][16]
  float* scores[2];     // [2][kKeys][16]; weights take the place of the scores they come from
  std::uint32_t* lost;  // [kBlocks][depth_v]; bit r: row r sees a value that is not finite
  float* joined;        // as o: of the splits that are joined already
  Tile* shown;          // [kBlocks][groups of kGroup keys]
  ExprMemory<float> mods;
};

// The states of a row block over a split of its keys, for another task to join.
struct SplitState {
  bool seen = false, has_lost = false;  // any key; `lost` holds something
  float *m = nullptr, *l = nullptr;     // [kRows]
  float* most = nullptr;                // [kRows]: the largest scores, where they are asked for
  float* t = nullptr;                   // [kRows]: entropies' sums (algebra/entropy.hpp), where they are asked for
  float* o = nullptr;                   // [2][depth_v][16]
  std::uint32_t* lost = nullptr;        // [depth_v]
};

struct AttendTask {
  const ScoreParams* params;
  std::span<const NamedTensor> mod_buffers;
  ScoreUnit unit;  // of the scores that the softmax finds
  Scratch scratch;
  int blocks;  // row blocks in scratch.blocks
  int dim_qk, dim_v;
  const std::uint16_t *k, *v;  // packed
  const std::uint32_t* flags;  // of v
  std::int64_t first_key;      // the key at k, v and flags
  bool joins;                  // a task joins the states of splits
  SplitState* splits;          // [blocks]: gets the states of the rows, which are not finished then; else null
  std::int64_t seq_k;
  bool scaled;  // products are multiplied by the factors of their rows and of their keys' block
  Descale key_factors;
  std::int64_t kv_head;
  DType out_type;
  bool negate_q;  // the sign of the scale, packed into q
  bool sinks;
  bool row_max, entropy;  // are asked for
  float dropout_p;
  std::uint64_t seed;
  std::uint32_t dropout_start[4];     // Problem::dropout_start
  std::uint32_t batch;                // coordinate of the dropout mask
  std::uint32_t not_finite[kBlocks];  // out: bit r is set if row r of the block overflowed
};

struct Kernels {
  void (*pack_keys)(const PackTask&);
  void (*pack_values)(const PackTask&);
  void (*attend)(AttendTask&);
  void (*finish)(AttendTask&, const SplitState*, int);  // of one row block
};

}  // namespace onepass::cpu::amx
