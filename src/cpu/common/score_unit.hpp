// The unit in which a CPU kernel leaves its scores for the softmax.
#pragma once
#include <cmath>
#include <limits>

#include "algebra/online_softmax.hpp"
#include "problem/problem.hpp"

namespace onepass::cpu {

// Scores that nothing but a mask's band changes stay products of q and k, the sign of the scale turned into q: the
// softmax multiplies them as it subtracts the reference. All others are natural.
struct ScoreUnit {
  bool products = false;
  float to_log2 = static_cast<float>(kLog2e), to_natural = 1.0f;
};

// A scale that vanishes in fp32 is multiplied out: a masked score, -inf, times 0 would be NaN. hides_products: a kernel
// applies a mask_mod to products, too.
inline ScoreUnit score_unit_of(const Problem& p, bool hides_products = false) {
  const double scale = std::abs(p.effective_scale());
  const bool changed = p.softcap > 0 || p.bias || p.bool_mask || p.alibi || !p.score_mod.empty() ||
                       (!p.mask_mod.empty() && !hides_products);
  if (changed || scale < double{std::numeric_limits<float>::min()}) return {};
  return {true, static_cast<float>(scale * kLog2e), static_cast<float>(scale)};
}

}  // namespace onepass::cpu
