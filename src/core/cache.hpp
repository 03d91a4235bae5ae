// What a cache's tensors hold, where the CPU can look.
#pragma once
#include "onepass/attention.hpp"

namespace onepass {

// Throws Error, on the CPU, if seqused_k or the used entries of page_table are out of range. Entries that no key of a
// sequence lies in are not read.
void check_cache(const Problem& problem, const Tensors& tensors);

}  // namespace onepass
