#include "core/cache.hpp"

#include "core/arguments.hpp"
#include "core/text.hpp"

namespace onepass {

void check_cache(const Problem& p, const Tensors& t) {
  if (p.device.kind != DeviceKind::cpu || !(p.seqused || p.paged())) return;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, t, b);
    want(s.seq_k >= 0 && s.seq_k <= p.seq_k, ErrorCode::bad_value, "seqused_k[", b, "] is ", s.seq_k, "; 0 to ",
         p.seq_k, " is accepted");
    if (!p.paged()) continue;
    for (std::int64_t i = 0; i * p.page_size < s.seq_k; ++i) {
      const std::int32_t page = s.pages.entry[i * s.pages.stride];
      want(page >= 0 && page < p.pages, ErrorCode::bad_value, "page_table[", b, ", ", i, "] is ", page,
           "; a page from 0 to ", p.pages - 1, " is accepted");
    }
  }
}

}  // namespace onepass
