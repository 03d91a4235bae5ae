// The rows of a block as the tile half wants them: addresses, key ranges, what ALiBi, sinks and dropout ask of a row.
#pragma once
#include <cstdint>

#include "cpu/amx/task.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::cpu::amx {

// Rows [first_row, first_row + kRows) of a K/V head, (token, head of the group), token-major: a block serves the whole
// group and reads K and V once. `batch` is the entry, also when packed.
RowBlock row_block(const Problem& problem, const Tensors& arguments, const ScoreParams& params, const Sequence& seq,
                   std::int64_t batch, std::int64_t kv_head, std::int64_t first_row);

}  // namespace onepass::cpu::amx
