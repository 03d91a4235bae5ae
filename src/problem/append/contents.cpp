// Where the tokens of an append may go, from numbers that the CPU can read: lengths, pages, slots, positions.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "problem/append/append.hpp"
#include "problem/attention/cache.hpp"

namespace onepass {
namespace {

// Sequences may share pages that they only read. Two must not append to the same place, because threads would meet
// there. None may append to a page that holds live keys of another, which would be overwritten now or at its next
// token.
void check_places(const Problem& p, const Tensors& t) {
  struct Part {  // tokens of a page that sequence b writes
    std::int64_t page, from, to, b;
  };
  if (new_tokens(p) == 0) return;
  std::vector<Part> parts;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, t, b);
    for (std::int64_t key = s.seq_k, end = s.seq_k + s.seq_q; key < end;) {
      const std::int64_t entry = key / p.page_size, from = key % p.page_size,
                         to = std::min(p.page_size, from + end - key);
      parts.push_back({checked_page(s.pages, b, entry, p.pages), from, to, b});
      key += to - from;
    }
  }
  std::ranges::sort(parts, {}, [](const Part& x) { return std::tuple(x.page, x.from, x.b); });
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const Part &x = parts[i - 1], &y = parts[i];
    want(x.page != y.page || x.to <= y.from, ErrorCode::bad_value, "only one new token may be written to token ",
         y.from, " of page ", y.page, " (page_table gives it to sequences ", x.b, " and ", y.b, ")");
  }
  std::vector<bool> written(static_cast<std::size_t>(p.pages));
  for (const Part& part : parts) written[static_cast<std::size_t>(part.page)] = true;
  for (std::int64_t b = 0; b < p.batch && !parts.empty(); ++b) {
    const Sequence s = sequence_of(p, t, b);
    for (std::int64_t entry = 0; entry * p.page_size < s.seq_k; ++entry) {
      const std::int64_t page = s.pages.entry[entry * s.pages.stride];  // one that is not read may be anything
      if (page < 0 || page >= p.pages || !written[static_cast<std::size_t>(page)]) continue;
      const auto other =
          std::ranges::find_if(parts, [&](const Part& part) { return part.page == page && part.b != b; });
      want(other == parts.end(), ErrorCode::bad_value, "sequence ", other == parts.end() ? 0 : other->b,
           " must not append to page ", page, ", which holds live keys of sequence ", b, " (page_table[", b, ", ",
           entry, "]); copy the page first");
    }
  }
}

// Slots and positions in range, and one token for each slot.
void check_slots(const Problem& p, const Tensors& t) {
  const auto repeated = [](const ConstTensor& x) { return !x.given() || x.stride[0] == 0; };
  // Repeated entries say all about the others.
  const std::int64_t tokens =
      repeated(t.slot_mapping) && repeated(t.positions) ? std::min<std::int64_t>(p.seq_q, 2) : p.seq_q;
  std::vector<std::pair<std::int64_t, std::int64_t>> places;  // slot, token
  for (std::int64_t i = 0; i < tokens; ++i) {
    const NewToken token = new_token(t, {}, i);
    want(token.key < p.seq_k, ErrorCode::bad_value, "slot_mapping[", i, "] must be below ", p.seq_k, ", the slots of ",
         p.pages, " pages of ", p.page_size, " (got ", token.key, ")");
    want(!p.rotary || (token.skipped() && !p.with_q) || (token.position >= 0 && token.position < p.positions),
         ErrorCode::bad_value, "positions[", i, "] must be a row of cos and sin, from 0 to ", p.positions - 1, " (got ",
         token.position, ")");
    if (!token.skipped()) places.emplace_back(token.key, i);
  }
  std::ranges::sort(places);
  const auto twice = std::ranges::adjacent_find(places, {}, [](const auto& place) { return place.first; });
  if (twice == places.end()) return;
  throw Error(ErrorCode::bad_value,
              text("only one token may be written to slot ", twice->first, " (slot_mapping gives it to tokens ",
                   twice->second, " and ", std::next(twice)->second, ")"));
}

}  // namespace

void check_append_contents(const Problem& p, const Tensors& t) {
  if (p.device.kind != DeviceKind::cpu) return;
  if (p.slots) return check_slots(p, t);
  if (p.varlen) (void)lengths_from("cu_seqlens_q", t.cu_seqlens_q, p.total_q, "k_new");
  // One entry that is repeated says all about the others.
  const bool one = !p.varlen && t.cache_seqlens.stride[0] == 0;
  for (std::int64_t b = 0; b < (one ? std::min<std::int64_t>(p.batch, 1) : p.batch); ++b) {
    const Sequence s = sequence_of(p, t, b);
    want(s.seq_k >= 0 && s.seq_k <= p.seq_k - s.seq_q, ErrorCode::bad_value, "cache_seqlens[", b, "] must be 0 to ",
         p.seq_k - s.seq_q, " to append ", s.seq_q, " tokens to a cache of ", p.seq_k, " (got ", s.seq_k, ")");
    want(!p.rotary || s.seq_q == 0 || s.seq_k <= p.positions - s.seq_q, ErrorCode::bad_value, "cache_seqlens[", b,
         "] must be at most ", p.positions - s.seq_q, " to append ", s.seq_q, " tokens with ", p.positions,
         " positions of cos and sin (got ", s.seq_k, ")");
  }
  if (p.paged()) check_places(p, t);
}

}  // namespace onepass
