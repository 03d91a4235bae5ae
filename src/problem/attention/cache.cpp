#include "problem/attention/cache.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace onepass {

void check_cache(const Problem& p, const Tensors& t) {
  if (p.device.kind != DeviceKind::cpu || !(p.seqused || p.paged())) return;
  // All entries are one where they are repeated, however many there are.
  const bool one = (!p.seqused || t.seqused_k.stride[0] == 0) && (!p.paged() || t.page_table.stride[0] == 0);
  for (std::int64_t b = 0; b < (one && !p.varlen ? std::min<std::int64_t>(p.batch, 1) : p.batch); ++b) {
    const Sequence s = sequence_of(p, t, b);
    want(s.seq_k >= 0 && s.seq_k <= p.seq_k, ErrorCode::bad_value, "seqused_k[", b, "] must be 0 to ", p.seq_k,
         " (got ", s.seq_k, ")");
    if (!p.paged()) continue;
    for (std::int64_t i = 0; i * p.page_size < s.seq_k; ++i) checked_page(s.pages, b, i, p.pages);
  }
}

std::int64_t checked_page(const Pages& row, std::int64_t b, std::int64_t i, std::int64_t pages) {
  const std::int64_t page = row.entry[i * row.stride];
  want(page >= 0 && page < pages, ErrorCode::bad_value, "page_table[", b, ", ", i, "] must be a page from 0 to ",
       pages - 1, " (got ", page, ")");
  return page;
}

std::int64_t keys_of_pages(std::int64_t max_pages, std::int64_t page_size) {
  std::int64_t keys = 0;
  want(page_size >= 1, ErrorCode::bad_shape, "the pages of k must have 1 or more keys (got 0)");
  want(!__builtin_mul_overflow(max_pages, page_size, &keys), ErrorCode::bad_shape,
       "a row of page_table must hold at most 2^62 keys (got ", max_pages, " pages of ", page_size, ")");
  return keys;
}

}  // namespace onepass
