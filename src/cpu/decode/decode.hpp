// Attention for few query rows per K/V head (decoding, short prompts, MQA): the keys are the long side, so K and V are
// read once, as fast as memory gives them, and everything else is arranged around that. See README.md.
//
// Rows of a K/V head = (query token, head of the GQA group), token-major. A task is one sequence, a block of K/V heads
// and one range of keys; it goes through its keys in chunks: tiles of K, the softmax, tiles of V.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "algebra/split.hpp"
#include "base/workspace.hpp"
#include "cpu/common/combine.hpp"
#include "cpu/common/queries.hpp"
#include "cpu/common/score_unit.hpp"
#include "expression/eval.hpp"
#include "expression/mask_bounds.hpp"
#include "problem/attention/score.hpp"

namespace onepass::cpu {

inline constexpr std::int64_t kDecodeMaxRows = 16;   // per K/V head; more are flash's (README.md)
inline constexpr std::int64_t kDecodeMaxLanes = 16;  // fp32 lanes of the widest vector

// How a call is cut: by the shape, the strides and the longest sequences alone.
struct DecodeCut {
  std::int64_t rows = 0;   // per K/V head, at most
  std::int64_t heads = 1;  // K/V heads per task
  std::int64_t head_blocks = 1;
  std::int64_t chunk = 0;   // keys per online-softmax step
  std::int64_t tile = 0;    // keys of one head read at a time; divides chunk
  std::int64_t lead = 0;    // tiles between what is read and what is fetched
  bool keys_outer = false;  // [seq, heads, dim] memory: all heads of a chunk before the next chunk
  bool one_result = false;  // common/one_result.hpp: chunks and splits begin at multiples of their size
  KeySplits splits;
  std::int64_t tasks(std::int64_t batch) const { return batch * head_blocks * splits.count; }
};
DecodeCut decode_cut(const Problem& problem, const Longest& longest);

// Rows in whole row groups, of 4, 2 or 1: a group of three is one of four whose last row is there twice.
inline std::int64_t in_groups(std::int64_t rows) { return rows % 4 == 3 ? rows + 1 : rows; }

// One worker's memory. Rows are padded to whole row groups, dims to 32 elements.
struct DecodeScratch {
  std::int64_t padded_rows = 0, dim_qk = 0, dim_v = 0;  // padded
  float *q, *o;                                         // [heads][padded_rows][dim]
  float *m, *l;                                         // [heads][padded_rows][kDecodeMaxLanes]
  float* t;                                             // as l: entropies' sums (algebra/entropy.hpp), or nullptr
  float* scores;                                        // [heads][padded_rows][chunk]: [chunk][R] per row group
  float* alpha;                                         // [heads][padded_rows][kDecodeMaxLanes]
  float* extra;                                         // [chunk][4]
  float* visible;                                       // as scores: accumulate_checked
  float* lost;                                          // as o: what accumulate_checked keeps out of it
  float* left;                                          // [heads][padded_rows]: 1, unified_max did not serve it
  float* packed;                                        // [tile][dim]: rows whose length does not fill vectors
  float *turned, *sums;                                 // one_result-inl.h: [dim_qk][tile], and as o
  ExprMemory<float> mods;                               // of score_mod and mask_mod
  Tile* tiles;                                          // [heads][chunks]: how a mask_mod shows the task's chunks
};
// The most chunks of a task, which may begin within one.
inline std::int64_t chunks_at_most(const Problem& p, const DecodeCut& cut) { return p.seq_k / cut.chunk + 2; }
DecodeScratch book_decode(Workspace& workspace, const Problem& problem, const DecodeCut& cut);

struct DecodeJob {
  const Problem& problem;
  const Tensors& arguments;
  DecodeCut cut;
  Partials partials;       // state == nullptr if the keys are not cut
  DecodeScratch* scratch;  // [workers]
  ScoreParams params;
  ScoreUnit unit;
  const std::vector<std::int64_t>& entries;  // of the batch, in the order of tasks
  const MaskBounds* mask_bounds = nullptr;   // of a mask_mod
};

using DecodeTask = void (*)(const DecodeJob& job, std::int64_t task, int worker);

// "cpu.decode.avx512", "cpu.decode.avx2", "cpu.decode.baseline": those that were compiled
std::span<const Implementation> decode_implementations();

// The decision about a problem for the kernels of one instruction set.
Decision plan_decode(const Request& request, std::int64_t target, DecodeTask task);

}  // namespace onepass::cpu
