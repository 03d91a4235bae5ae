// How the work of a decoding kernel is shared among CTAs: what work_partition.cuh finds on the device.
#pragma once
#include "cuda/attention/host.hpp"
#include "cuda/decode/decode_config.hpp"
#include "problem/implementation.hpp"

namespace onepass::decode {

// Rows per K/V head. More are the prefill kernels', but with batch_invariant blocks of rows (README.md).
inline constexpr int kMaxRows = 64;

struct Sharing {
  int rows;                 // of a partial result
  int block_n;              // keys of a tile
  int piece;                // tiles of a chunk of keys, the same in every batch; 0: keys are cut anywhere
  int min_tiles;            // of a block: fewer are not worth a merge
  int row_blocks = 1;       // of a K/V head
  int lead = 0;             // steps that beginning with a group takes as long as; 0 if there are pieces
  int co_scheduled = 1;     // of these, or of K/V heads: a group, whose CTAs walk along the keys at the same time
  bool own_blocks = false;  // row blocks have the keys that they see, and a CTA each (DecodeConfig::row_blocks)
  bool partials = true;     // pieces have partial results in the workspace
  bool by_tiles = false;    // steps are tiles, though there are pieces
};

// heads: K/V heads whose CTAs read a cache together (heads_together).
Sharing sharing_of(const Problem& problem, const DecodeConfig& config, int heads = 1);

// How the work is shared: every group's keys in `splits` parts, or all work in `blocks` equal parts if splits is 0. A
// part is a CTA, or one for each of the group's row blocks.
struct Share {
  int blocks, splits;
  bool whole = false;  // every group is one block's, though a block may have several
};

std::int64_t rows_of(const Problem& problem);  // of a K/V head
std::int64_t groups_of(const Problem& problem, const Sharing& sharing);
// Tiles of keys of one group, at most; they begin at a multiple of `piece` tiles.
std::int64_t tiles_of(const Problem& problem, int block_n, int piece = 1);
// K/V heads of a sequence whose CTAs read a cache together: heads of a page lie side by side. 1 where only one length
// is known.
int heads_together(const Problem& problem, int multiprocessors);
Share share_of(const Problem& problem, const Sharing& sharing, int multiprocessors);
bool may_be_even(const Problem& problem, const Sharing& sharing);  // whether splits is not 0 for some device
// What a launch takes but for what a call brings.
DecodeParams decided_params(const Problem& problem, const Sharing& sharing, const cuda::TileShape& tile,
                            const Share& share, const cuda::Part& part = {});
std::size_t workspace_bytes_of(const Problem& problem, const Sharing& sharing, int blocks);
// The addresses of a call; counters stay to be set.
void bind(DecodeParams& params, const Tensors& tensors, void* workspace);
// Those of a workspace, zero when a launch begins: known ones, or the workspace's own behind a memset.
unsigned* counters_of(const cuda::Call& call);
std::string sentence_of(const Share& share, const Sharing& sharing);         // for explain
inline constexpr std::size_t kCounterBytes = kMaxBlocks * sizeof(unsigned);  // where the workspace begins

}  // namespace onepass::decode
