// A call's bounds of its mask_mod, by which CPU kernels skip keys.
#pragma once
#include <optional>

#include "expression/mask_bounds.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::cpu {

// Buffers with up to 8 elements for each row and key are looked at whole, before any tile.
inline std::optional<MaskBounds> mask_bounds_of(const Problem& p, const Tensors& a, const Mods& mods) {
  if (!mods.mask.given()) return {};
  return std::optional<MaskBounds>(std::in_place, mods.mask, a.mod_buffers, 8 * p.batch * (p.seq_q + p.seq_k));
}

}  // namespace onepass::cpu
