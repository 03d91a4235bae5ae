#include "check/draw/parts.hpp"

#include <cmath>

#include "algebra/numerics.hpp"
#include "check/draw/random.hpp"

namespace onepass::check {
namespace {

constexpr std::int64_t kParts = 8;  // stream
// Huge LSEs; with the last two, all parts have the same LSE.
constexpr float kSizes[] = {3e4f, 3e6f, 3e8f, 3e17f, 3e38f};

void draw_row(const Problem& p, std::int64_t n, const ConstTensor& out, const ConstTensor& lse, std::uint64_t seed,
              Distribution distribution, std::int64_t b, std::int64_t h, std::int64_t i) {
  Random r(seed, {kParts, n, b, h, i});
  float& x = Inputs::writable<float>(lse)[lse_offset(lse, b, h, i)];
  const bool empty = r.below(6) == 0 || (b + h + i) % 11 == 10;
  switch (distribution) {
    case Distribution::normal: x = 4 * r.normal(); break;
    case Distribution::rising: x = 2.5f * static_cast<float>(h % 2 == 0 ? n : p.partials - n) + r.normal(); break;
    case Distribution::one_hot: x = (n == i % p.partials ? 30.0f : 0.0f) + r.normal(); break;
    case Distribution::huge: x = kSizes[i % 5] + 4 * r.normal(); break;
  }
  if (empty) x = -INFINITY;
  for (std::int64_t d = 0; d < p.dim_v && !empty; ++d)
    store_element(const_cast<void*>(out.data), out.dtype, row_offset(out, b, h, i) + d, 0.5f + r.normal());
}

}  // namespace

void draw_parts(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  const std::int64_t h = p.heads_q, s = p.seq_q;
  for (std::int64_t n = 0; n < p.partials; ++n)
    for (std::int64_t i = 0; i < p.batch * h * s; ++i)
      draw_row(p, n, t.outs[static_cast<std::size_t>(n)], t.lses[static_cast<std::size_t>(n)], seed, distribution,
               i / (h * s), i / s % h, i % s);
}

}  // namespace onepass::check
