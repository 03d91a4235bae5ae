#include "check/draw/append.hpp"

#include <cmath>
#include <numbers>

#include "algebra/numerics.hpp"
#include "check/draw/cache.hpp"
#include "check/draw/factors.hpp"
#include "check/draw/random.hpp"
#include "problem/roles.hpp"

namespace onepass::check {
namespace {

enum Stream : std::int64_t { kNew = 300, kAngles };

// Tokens that belong to no sequence stay as they are.
void draw_tokens(const Problem& p, const Tensors& t, Role role, std::uint64_t seed, Distribution distribution) {
  const ConstTensor to = tensor_of(t, row_of(role));
  if (!to.given()) return;
  const std::int64_t dim = to.shape[to.rank - 1];
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, t, b);
    for (std::int64_t h = 0; h < to.shape[1]; ++h) {
      for (std::int64_t i = 0; i < s.seq_q; ++i) {
        Random r(seed, {kNew, static_cast<std::int64_t>(role), b, h, i});
        const std::int64_t one = dim > 0 ? r.below(dim) : 0;
        const bool spoiled = seed % 2 == 1 && r.below(20) == 0;
        for (std::int64_t d = 0; d < dim; ++d) {
          float x = r.normal();
          if (distribution == Distribution::huge)
            x *= std::pow(10.0f, static_cast<float>(i % (p.dtype == DType::f16 ? 4 : 30)));
          if (distribution == Distribution::one_hot && d == one) x *= 100;
          if (distribution == Distribution::rising) x += static_cast<float>(i);
          if (spoiled && d == one) x = r.below(2) == 0 ? NAN : -INFINITY;
          store_element(const_cast<void*>(to.data), to.dtype, row_offset(to, b, h, s.q_begin + i) + d, x);
        }
      }
    }
  }
}

}  // namespace

void draw_append(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  p.slots ? draw_slots(p, t, seed) : draw_lengths_and_pages(p, t, seed);
  for (const Role role : {Role::k_new, Role::v_new, Role::q}) draw_tokens(p, t, role, seed, distribution);
  for (const Role role : {Role::k_descale, Role::v_descale}) draw_descale(tensor_of(t, row_of(role)), role, seed);
  for (std::int64_t i = 0; p.rotary && i < p.positions * (p.rotary_dim / 2); ++i) {
    const std::int64_t row = i / (p.rotary_dim / 2), column = i % (p.rotary_dim / 2);
    const float angle = 2 * std::numbers::pi_v<float> * Random(seed, {kAngles, i}).uniform();
    store_element(const_cast<void*>(t.cos.data), p.table_dtype, row * t.cos.stride[0] + column * t.cos.stride[1],
                  std::cos(angle));
    store_element(const_cast<void*>(t.sin.data), p.table_dtype, row * t.sin.stride[0] + column * t.sin.stride[1],
                  std::sin(angle));
  }
}

}  // namespace onepass::check
