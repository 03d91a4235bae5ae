// The contents of a cache's tensors, where the CPU can look.
#pragma once
#include "problem/attention/arguments.hpp"

namespace onepass {

// Throws Error, on the CPU, if seqused_k or the used entries of page_table are out of range. Entries that no key of a
// sequence lies in are not read.
void check_cache(const Problem& problem, const Tensors& tensors);
// The page that entry i of sequence b's row names; throws Error if there is none of `pages`.
std::int64_t checked_page(const Pages& row, std::int64_t b, std::int64_t i, std::int64_t pages);
// How many keys a row of a page table holds; throws Error if that is not a number, or pages hold none.
std::int64_t keys_of_pages(std::int64_t max_pages, std::int64_t page_size);

}  // namespace onepass
