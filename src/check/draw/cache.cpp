#include "check/draw/cache.hpp"

#include <limits>
#include <numeric>
#include <utility>

#include "check/draw/random.hpp"

namespace onepass::check {

namespace {
enum Stream : std::int64_t { kLengths = 100, kPages };  // apart from those of the values
}

std::vector<std::int32_t> draw_lengths(const Problem& p, std::uint64_t seed) {
  std::vector<std::int32_t> lengths;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const bool given = p.seqused && !p.lengths_k.empty(), most = !p.seqused || b == 0;
    const std::int64_t n = given  ? p.lengths_k[static_cast<std::size_t>(b)]
                           : most ? p.seq_k
                                  : Random(seed, {kLengths, b}).below(p.seq_k + 1);
    lengths.push_back(static_cast<std::int32_t>(n));
  }
  return lengths;
}

std::vector<std::int32_t> draw_page_table(const Problem& p, const std::vector<std::int32_t>& lengths,
                                          std::uint64_t seed) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(p.pages)), table;
  std::iota(order.begin(), order.end(), 0);
  Random r(seed, {kPages});
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<std::size_t>(r.below(static_cast<std::int64_t>(i)))]);
  std::size_t next = 0;
  for (const std::int32_t keys : lengths) {
    for (std::int64_t i = 0; i < p.max_pages; ++i) {
      const bool used = i * p.page_size < keys && !order.empty();
      table.push_back(used ? order[next++ % order.size()] : i % 2 == 0 ? -1 : std::numeric_limits<std::int32_t>::max());
    }
  }
  return table;
}

}  // namespace onepass::check
