#include "check/draw/cache.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "check/draw/random.hpp"
#include "check/inputs.hpp"
#include "problem/append/append.hpp"

namespace onepass::check {

namespace {
enum Stream : std::int64_t { kLengths = 100, kPages, kSlots, kPositions, kTree };  // apart from those of the values

std::vector<std::int32_t> shuffled(std::int64_t count, Random r) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<std::size_t>(r.below(static_cast<std::int64_t>(i)))]);
  return order;
}

}  // namespace

std::vector<std::int32_t> draw_lengths(const Problem& p, std::uint64_t seed) {
  std::vector<std::int32_t> lengths;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const bool given = p.seqused && !p.lengths_k.empty();
    const std::int64_t most = (p.rotary ? std::min(p.seq_k, p.positions) : p.seq_k) - new_tokens(p, b);
    const std::int64_t n = given                              ? p.lengths_k[static_cast<std::size_t>(b)]
                           : !p.seqused || b == 0 || most < 0 ? most
                                                              : Random(seed, {kLengths, b}).below(most + 1);
    lengths.push_back(static_cast<std::int32_t>(n));
  }
  return lengths;
}

std::vector<std::int32_t> draw_page_table(const Problem& p, const std::vector<std::int32_t>& lengths,
                                          std::uint64_t seed) {
  const std::vector<std::int32_t> order = shuffled(p.pages, Random(seed, {kPages}));
  std::vector<std::int32_t> table;
  std::size_t next = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t keys = lengths[static_cast<std::size_t>(b)] + new_tokens(p, b);
    for (std::int64_t i = 0; i < p.max_pages; ++i) {
      const bool used = i * p.page_size < keys && !order.empty();
      table.push_back(used ? order[next++ % order.size()] : i % 2 == 0 ? -1 : std::numeric_limits<std::int32_t>::max());
    }
  }
  return table;
}

std::vector<std::int32_t> draw_tree(const Problem& p, std::uint64_t seed) {
  constexpr std::int32_t kNone[] = {-1, -7, std::numeric_limits<std::int32_t>::max()};
  std::vector<std::int32_t> parents;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < p.drafts; ++i) {
      Random r(seed, {kTree, b, i});
      const std::int64_t parent = r.below(i + 1) - 1;  // -1: none
      // Every third draft continues the one before it, so that some paths are long.
      const auto drawn = static_cast<std::int32_t>(r.below(3) == 0 ? i - 1 : parent);
      parents.push_back(drawn < 0 ? kNone[r.below(3)] : drawn);
    }
  }
  return parents;
}

namespace {

void prefix_sums(const ConstTensor& cu, const std::vector<std::int64_t>& lengths) {
  auto* sums = Inputs::writable<std::int32_t>(cu);
  sums[0] = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) sums[i + 1] = static_cast<std::int32_t>(sums[i] + lengths[i]);
}
void put(const ConstTensor& t, const std::vector<std::int32_t>& numbers) {  // row by row
  const std::int64_t columns = t.rank == 2 ? t.shape[1] : 1;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / columns, column = static_cast<std::int64_t>(i) % columns;
    const std::int64_t at = row * t.stride[0] + column * t.stride[1];
    t.dtype == DType::i64 ? void(Inputs::writable<std::int64_t>(t)[at] = numbers[i])
                          : void(Inputs::writable<std::int32_t>(t)[at] = numbers[i]);
  }
}

}  // namespace

void draw_lengths_and_pages(const Problem& p, const Tensors& t, std::uint64_t seed) {
  if (p.varlen) prefix_sums(t.cu_seqlens_q, p.lengths_q);
  if (p.packed_k()) prefix_sums(t.cu_seqlens_k, p.lengths_k);
  const std::vector<std::int32_t> lengths = draw_lengths(p, seed);
  if (p.seqused) put(p.op == kAppend ? t.cache_seqlens : t.seqused_k, lengths);
  if (p.paged()) put(t.page_table, draw_page_table(p, lengths, seed));
  if (p.drafts > 0) put(t.tree, draw_tree(p, seed));
}

void draw_slots(const Problem& p, const Tensors& t, std::uint64_t seed) {
  std::vector<std::int32_t> slots = shuffled(p.seq_k, Random(seed, {kSlots})), positions;
  slots.resize(static_cast<std::size_t>(p.seq_q), -1);
  for (std::int64_t i = 0; i < p.seq_q; ++i) {
    Random r(seed, {kPositions, i});
    positions.push_back(static_cast<std::int32_t>(p.positions > 0 ? r.below(p.positions) : 0));
    if (r.below(8) == 0) slots[static_cast<std::size_t>(i)] = -1 - static_cast<std::int32_t>(r.below(3));
  }
  put(t.slot_mapping, slots);
  if (t.positions.given()) put(t.positions, positions);
}

}  // namespace onepass::check
