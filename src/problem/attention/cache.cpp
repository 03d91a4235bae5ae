#include "problem/attention/cache.hpp"

#include "base/text.hpp"

namespace onepass {

void check_cache(const Problem& p, const Tensors& t) {
  if (p.device.kind != DeviceKind::cpu || !(p.seqused || p.paged())) return;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, t, b);
    want(s.seq_k >= 0 && s.seq_k <= p.seq_k, ErrorCode::bad_value, "seqused_k[", b, "] is ", s.seq_k, "; 0 to ",
         p.seq_k, " is accepted");
    if (!p.paged()) continue;
    for (std::int64_t i = 0; i * p.page_size < s.seq_k; ++i) checked_page(s.pages, b, i, p.pages);
  }
}

std::int64_t checked_page(const Pages& row, std::int64_t b, std::int64_t i, std::int64_t pages) {
  const std::int64_t page = row.entry[i * row.stride];
  want(page >= 0 && page < pages, ErrorCode::bad_value, "page_table[", b, ", ", i, "] is ", page, "; a page from 0 to ",
       pages - 1, " is accepted");
  return page;
}

std::int64_t keys_of_pages(std::int64_t max_pages, std::int64_t page_size) {
  std::int64_t keys = 0;
  want(page_size >= 1, ErrorCode::bad_shape, "k has pages of 0 keys; 1 or more are accepted");
  want(!__builtin_mul_overflow(max_pages, page_size, &keys), ErrorCode::bad_shape, "page_table has ", max_pages,
       " pages of ", page_size, " keys for a sequence; 2^62 keys are accepted");
  return keys;
}

}  // namespace onepass
