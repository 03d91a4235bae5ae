// The rows of a block as the tile half wants them: addresses, key ranges, what ALiBi, sinks and dropout ask of a row.
#pragma once
#include <cstdint>

#include "cpu/amx/task.hpp"
#include "expression/mask_bounds.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::cpu::amx {

// Rows [first_row, first_row + kRows) of a K/V head, (token, head of the group), token-major: a block serves the whole
// group and reads K and V once. `batch` is the entry, also when packed.
RowBlock row_block(const Problem& problem, const Tensors& arguments, const ScoreParams& params, const Sequence& seq,
                   std::int64_t batch, std::int64_t kv_head, std::int64_t first_row);

// Narrows a block to the keys that a mask_mod shows to some row. Leaves the states of their groups at `shown`.
void look_at_mask(const Problem& problem, const MaskBounds& mask, const Sequence& seq, std::int64_t kv_head,
                  std::int64_t first_row, RowBlock& block, Tile* shown);

// A task of a head without its keys and row blocks.
AttendTask attend_task(const Problem& problem, const Tensors& arguments, const ScoreParams& params, const Sequence& seq,
                       std::int64_t kv_head, const Scratch& scratch);

// Keys [from, from + keys) of a head, from a multiple of kGroup, packed to where k, v and flags begin.
struct PackedKeys {
  std::uint16_t *k, *v;
  std::uint32_t* flags;
};
void pack_keys(const Kernels& kernels, const Problem& problem, const Tensors& arguments, const Sequence& seq,
               std::int64_t head, std::int64_t from, std::int64_t keys, const PackedKeys& to);

// Rows of which the tiles could not finish all: once more, without them.
void finish_rows(const Problem& problem, const Tensors& arguments, const ScoreParams& params, const Sequence& seq,
                 const AttendTask& task);

}  // namespace onepass::cpu::amx
