// One result per row (Problem::batch_invariant). cpu.decode and cpu.flash then give a row the same bits: they sum its
// weights and products in blocks of keys from the first key of the sequence, and join states where a split ends. A
// row's products are sums over head dims in order, and its weights four sums, of every fourth key.
#pragma once
#include <cstdint>

#include "algebra/split.hpp"

namespace onepass::cpu {

inline constexpr std::int64_t kBlockKeys = 96;  // of cpu.flash on every instruction set
inline constexpr std::int64_t kSumsOfKeys = 4;

// Splits begin at multiples of their chunk.
inline KeySplits aligned_splits(std::int64_t seq_k) { return fixed_splits(seq_k, kBlockKeys); }

}  // namespace onepass::cpu
