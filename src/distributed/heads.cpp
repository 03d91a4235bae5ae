// Heads that are dealt out: the scheme ulysses.
#include <algorithm>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "distributed/layout.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

using Index = std::int64_t;

Index group_of(Index heads_q, Index heads_kv) {
  const bool fits = heads_q >= 0 && (heads_kv > 0 ? heads_q % heads_kv == 0 : heads_kv == 0 && heads_q == 0);
  want(fits, ErrorCode::bad_shape, "heads_q (", heads_q, ") must be a multiple of heads_kv (", heads_kv, ")");
  return std::max<Index>(1, heads_kv > 0 ? heads_q / heads_kv : 1);
}

}  // namespace

HeadShare heads_of(Index heads_q, Index heads_kv, Index ranks, Index rank) {
  const Index group = group_of(heads_q, heads_kv);
  want(ranks > 0 && rank >= 0 && rank < ranks, ErrorCode::bad_value, "rank must be from 0 to ", ranks - 1, " (got ",
       rank, ")");
  const Range heads{heads_q * rank / ranks, heads_q * (rank + 1) / ranks};
  const Index begin = heads.begin / group;
  return {heads, heads.empty() ? Range{begin, begin} : Range{begin, ceil_div(heads.end, group)}};
}

std::vector<HeadShare> head_calls(Index heads_q, Index heads_kv, Index ranks, Index rank) {
  const Index group = group_of(heads_q, heads_kv);
  const HeadShare mine = heads_of(heads_q, heads_kv, ranks, rank);
  std::vector<HeadShare> calls;
  for (Index at = mine.heads.begin; at < mine.heads.end;) {
    const Index whole = at % group == 0 ? (mine.heads.end - at) / group * group : 0;
    const Index end = whole > 0 ? at + whole : std::min(mine.heads.end, (at / group + 1) * group);
    const Range heads{at - mine.heads.begin, end - mine.heads.begin};
    calls.push_back({heads, {at / group - mine.heads_kv.begin, ceil_div(end, group) - mine.heads_kv.begin}});
    at = end;
  }
  return calls;
}

}  // namespace onepass::inline v0::context_parallel
