// An element's bytes are base + sum |stride_i| x_i + e, x_i in [0, size_i), e in [0, size of the element), once
// reversed dimensions are counted from their other end. With b's x and e counted down from b's last byte, a byte of a
// is one of b if
//
//   sum over both of |stride| x + e + e' = b.last - a.first
//
// which asks whether a sum of a few bounded multiples takes a value: a knapsack, but one whose steps come from the
// nested dimensions of a tensor, so that it falls apart into one of one or two steps for each dimension.
#include "base/overlap.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>

namespace onepass {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 61;  // between two bytes: sums of two such fit 64 bits
constexpr int kMaxSteps = 1 << 14;

struct Term {  // step * x, 0 <= x <= most
  std::int64_t step, most;
  std::int64_t top() const { return step * most; }
};
using Terms = std::span<const Term>;

std::int64_t top_of(Terms terms) {
  std::int64_t sum = 0;
  for (const Term& t : terms) sum += t.top();
  return sum;
}
std::int64_t gcd_of(Terms terms) {
  std::int64_t g = 0;
  for (const Term& t : terms) g = std::gcd(g, t.step);
  return std::max<std::int64_t>(g, 1);
}

// Returns true if the terms, largest step first, can add up to d, or if `steps` runs out.
bool adds_up(Terms terms, std::int64_t d, int& steps) {
  if (terms.size() == 1) return d >= 0 && d % terms[0].step == 0 && d / terms[0].step <= terms[0].most;
  if (d < 0 || d > top_of(terms) || d % gcd_of(terms) != 0) return false;
  // The large steps make multiples of their gcd, so only every gcd-th sum of the small ones is worth a try. Cut where
  // fewest are left: between two dimensions of a tensor these are at most two.
  std::size_t cut = 0;
  std::int64_t first = 0, apart = 1, fewest = INT64_MAX;
  for (std::size_t k = terms.size() - 1; k > 0 && fewest > 0; --k) {
    const std::int64_t g = gcd_of(terms.first(k)), lo = std::max<std::int64_t>(0, d - top_of(terms.first(k))),
                       hi = std::min(d, top_of(terms.subspan(k)));
    const std::int64_t from = lo + (d - lo) % g, count = from > hi ? 0 : (hi - from) / g + 1;
    if (count >= fewest) continue;
    cut = k, first = from, apart = g, fewest = count;
  }
  for (std::int64_t i = 0, small = first; i < fewest; ++i, small += apart) {
    if (--steps < 0) return true;
    if (adds_up(terms.subspan(cut), small, steps) && adds_up(terms.first(cut), d - small, steps)) return true;
  }
  return false;
}

}  // namespace

Extent extent_of(const ConstTensor& t) {
  std::int64_t lo = 0, hi = 0;  // of elements
  bool fits = true;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] <= 0) return {};
    std::int64_t span = 0;
    fits = fits && !__builtin_mul_overflow(t.shape[i] - 1, t.stride[i], &span);
    std::int64_t& end = span < 0 ? lo : hi;
    fits = fits && !__builtin_add_overflow(end, span, &end);
  }
  constexpr std::int64_t kMax = kMaxBytes / 16;
  if (!t.given()) return {};
  if (!fits || lo < -kMax || hi > kMax) return {0, UINT64_MAX};
  const auto base = reinterpret_cast<std::uintptr_t>(t.data);
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  return {base + static_cast<std::uint64_t>(lo * size), base + static_cast<std::uint64_t>((hi + 1) * size)};
}

bool share_memory(const ConstTensor& a, const Extent& of_a, const ConstTensor& b, const Extent& of_b) {
  if (of_a.from == of_a.to || of_b.from == of_b.to) return false;
  if (of_a.from >= of_b.to || of_b.from >= of_a.to || a.device != b.device) return false;
  if (of_a.to - of_a.from > kMaxBytes || of_b.to - of_b.from > kMaxBytes) return true;

  Term terms[2 * kMaxRank + 1] = {};
  std::size_t kept = 0;
  const auto add = [&](const Term& x) {  // in its place; terms of the same step are one
    std::size_t at = kept;
    while (at > 0 && terms[at - 1].step < x.step) --at;
    if (at > 0 && terms[at - 1].step == x.step) {
      terms[at - 1].most += x.most;
      return;
    }
    for (std::size_t i = kept++; i > at; --i) terms[i] = terms[i - 1];
    terms[at] = x;
  };
  std::int64_t run = 0;  // every sum from 0 to it can be had: the bytes of the elements, then whole rows of them
  for (const ConstTensor* t : {&a, &b}) {
    const auto size = static_cast<std::int64_t>(size_of(t->dtype));
    run += size - 1;
    for (int i = 0; i < t->rank; ++i) {
      if (t->shape[i] > 1 && t->stride[i] != 0)
        add({(t->stride[i] < 0 ? -t->stride[i] : t->stride[i]) * size, t->shape[i] - 1});
    }
  }
  while (kept > 0 && terms[kept - 1].step <= run + 1) run += terms[--kept].top();
  terms[kept++] = {1, run};
  int steps = kMaxSteps;
  return adds_up({terms, kept}, static_cast<std::int64_t>(of_b.to - 1 - of_a.from), steps);
}

}  // namespace onepass
