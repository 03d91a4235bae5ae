// A unified maximum: the weights of all rows and parts refer to one phi, so that parts join by addition. The first keys
// that a row sees in a part of its keys say whether phi serves it there, and later ones may rise beyond its range: the
// row then goes on with its own running maximum, exactly. docs/features/flashdecoding_pp.md.
#pragma once
#include "cuda/decode/work_partition.cuh"

namespace onepass::decode {

// Weights of fp16 have 30 exponents, of which a row's largest is to have one of the upper half: the reference is as far
// below phi as they reach. In log2 units.
constexpr bool kHalfWeights = kFp8Keys || features.input == ScalarType::f16;
constexpr float kHighest = (kHalfWeights ? 2 * kUnifiedReach16 : kUnifiedReach) * static_cast<float>(kLog2e);
constexpr float kLowest = kHalfWeights ? 0.0f : -kHighest;
constexpr float kLargestSum = kHalfWeights ? 22026.466f : 2.3538527e17f;  // 2^kHighest

// In the unit of m.
DEV float unified_reference(const DecodeParams& p) {
  if constexpr (kTransforms)
    return kCapLast ? p.phi / p.cap_out : p.phi;
  else
    return __fmul_rn(p.phi, static_cast<float>(kLog2e));
}

// Lazy steps are for rows that a lane has weights of: at its first keys a row takes an exact step.
template <class Unit>
struct UnifiedUnit : Unit {
  float reference;
  DEV bool lazy(const LaneRows& rows) const {
    return Unit::lazy(rows) && rows.state[0].l != 0.0f && rows.state[1].l != 0.0f;
  }
  DEV bool lazy(const RowState<float>& s) const { return Unit::lazy(s) && s.l != 0.0f; }
  DEV auto advance(RowState<float>& s, float tile_max) const {
    const float above = kTransforms ? (tile_max - reference) * Unit::factor : tile_max * Unit::factor - reference;
    const bool seen = quad_sum(s.l) != 0.0f, low = !seen && above < kLowest;
    if (s.m == reference && (tile_max == kNegInf || (!low && above <= kHighest))) return Unit::keep(s);
    if (low) s = {};
    return Unit::advance(s, tile_max);
  }
};
DEV auto softmax_unit(const DecodeParams& p) {
  const auto unit = unit_of(p);
  if constexpr (kUnified)
    return UnifiedUnit<decltype(unit_of(p))>{unit, unified_reference(p)};
  else
    return unit;
}

DEV void begin_unified(const DecodeParams& p, LaneRows& rows) {
  rows.state[0].m = rows.state[1].m = unified_reference(p);
}
// A part in which a row has seen no key says nothing about it.
DEV void end_unified(LaneRows& rows) {
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    if (quad_sum(rows.state[i].l) == 0.0f) rows.state[i].m = kNegInf;
  }
}
DEV bool is_served(const DecodeParams& p, const RowState<float>& s) {
  return s.l == 0.0f || s.m == unified_reference(p);
}

}  // namespace onepass::decode
