// Random lengths and page tables of a cache.
#pragma once
#include <cstdint>
#include <vector>

#include "problem/problem.hpp"
#include "problem/tensors.hpp"

namespace onepass::check {

// cu_seqlens_q and cu_seqlens_k, seqused_k, page_table and tree: those that the problem has.
void draw_lengths_and_pages(const Problem& problem, const Tensors& tensors, std::uint64_t seed);

// slot_mapping and positions of an append: slots in any order, each of one token, and every eighth token or so, and
// those that find no room, without a slot; positions in any order.
void draw_slots(const Problem& problem, const Tensors& tensors, std::uint64_t seed);

// The number of keys of each sequence: the lengths of the problem if it has them, else 0 to seq_k, and seq_k for the
// first sequence. Without seqused_k all lengths are seq_k. An append's leave room for what is new.
std::vector<std::int32_t> draw_lengths(const Problem& problem, std::uint64_t seed);

// [batch, max_pages], pages in any order. Each belongs to one sequence until none is left; then they are shared.
// Entries that hold no key are out of range.
std::vector<std::int32_t> draw_page_table(const Problem& problem, const std::vector<std::int32_t>& lengths,
                                          std::uint64_t seed);

// [batch, drafts], the parent of each draft. All kinds of numbers say that a draft has none.
std::vector<std::int32_t> draw_tree(const Problem& problem, std::uint64_t seed);

}  // namespace onepass::check
