// Biases, boolean masks, block masks and the buffers of a score_mod.
#pragma once
#include <cstdint>

#include "onepass/tensor.hpp"

namespace onepass::check {

// N(0, 2), one number in 16 is -inf.
void draw_bias(const ConstTensor& bias, std::uint64_t seed);
// Blocks of 32 x 64 are hidden (one in 4), visible (one in 4) or half hidden; one row in 8 sees nothing.
void draw_mask(const ConstTensor& mask, std::uint64_t seed);
// Tiles are empty (one in 3), full (one in 4) or mixed, by any number but 0 and 2; one row of tiles in 8 is empty, and
// one column in 8.
void draw_block_mask(const ConstTensor& tiles, std::uint64_t seed);
// Floats N(0, 1); bools half of them true; integers that rise by 1 about every 50 elements of the last dimension, as
// the ids of documents do.
void draw_mod_buffer(const ConstTensor& buffer, std::int64_t number, std::uint64_t seed);

}  // namespace onepass::check
