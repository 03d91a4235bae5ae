// One score: from the product of a query and a key to what the softmax takes.
//
//   score(product, bias, row, key)     is what fragments of both architectures and the fallback compute, one by one
//   derived(product, bias, row, key)   the same with its derivatives, for a backward pass
//   masked(row, key)                   whether a mask beyond the band leaves the key out
//   tree_row(row)                      the drafts that the row sees
#pragma once
#include "algebra/tree.hpp"
#include "cuda/attention/forward.hpp"
#include "cuda/attention/fragment.cuh"
#include "cuda/attention/softmax.cuh"

#include "cuda/attention/scores/dual.cuh"
#include "cuda/attention/tile_scheduler.cuh"
#include "cuda/mma/elements.cuh"

namespace onepass {

// With these, scores come in natural units, or in units of the cap where nothing follows it: the softmax multiplies
// them once more in any case, and so their own last product is saved.
constexpr bool kTransforms = features.transforms();
constexpr bool kCapLast =
    features.softcap && features.bias == ScalarType::none && !features.alibi && !features.score_mod;

// The unit of the scores that the softmax finds.
DEV auto unit_of(const AttentionParams& p) {
  constexpr float kNatural = static_cast<float>(kLog2e);
  if constexpr (!kTransforms)
    return Products{p.scale_log2, p.scale};
  else
    return kCapLast ? Transformed{kNatural * p.cap_out, p.cap_out} : Transformed{kNatural, 1.0f};
}

// A score with its derivatives: by the bias (and all else that score_mod finds added up), by the scaled product.
struct DerivedScore {
  float value, by_bias, by_product;
};

// The scores of one head's rows and keys.
struct HeadScores {
  const AttentionParams& p;
  Band32 band;
  float slope = 0;
  u32 batch = 0, head = 0;

  DEV auto unit() const { return unit_of(p); }
  DEV void open(const WorkTile& x) {
    band = band_of(p, x.seq_q, x.seq_k);
    batch = x.batch, head = x.head;
    if constexpr (features.alibi) slope = p.slopes[x.batch * p.slope_stride[0] + x.head * p.slope_stride[1]];
  }

  // In the unit that unit() tells; without transforms the product itself.
  DEV float score(float product, float bias, i32 row, i32 key) const {
    if constexpr (!kTransforms) return product;
    return after_cap(features.softcap ? tanh_of(p.cap_in * product) : p.scale * product, bias, row, key);
  }
  // Its two steps, where two neighbours share the first: products capped, in units of the cap, and what follows.
  DEV void cap_pair(float& x, float& y) const { tanh_pair(2 * static_cast<float>(kLog2e) * p.cap_in, x, y); }
  DEV float after_cap(float x, float bias, i32 row, i32 key) const {
    x = biased(x, bias, row, key);
    if constexpr (features.score_mod)
      x = user::score_mod(x, static_cast<i32>(batch), static_cast<i32>(head), row, key, p.mod_buffers);
    return x;
  }
  DEV float biased(float x, float bias, i32 row, i32 key) const {
    if constexpr (features.softcap && !kCapLast) x *= p.cap_out;
    if constexpr (features.bias != ScalarType::none) x += bias;
    if constexpr (features.alibi) x -= slope * distance(row, key);
    return x;
  }
  DEV float distance(i32 row, i32 key) const { return static_cast<float>(abs(row + band.shift - key)); }

  // score() and after_cap() once more.
  DEV DerivedScore derived(float product, float bias, i32 row, i32 key) const {
    if constexpr (!kTransforms) return {product, 1.0f, 1.0f};
    return derived_after_cap(features.softcap ? tanh_of(p.cap_in * product) : p.scale * product, bias, row, key);
  }
  DEV DerivedScore derived_after_cap(float x, float bias, i32 row, i32 key) const {
    DerivedScore s = {biased(x, bias, row, key), 1.0f, 1.0f};
    if constexpr (features.score_mod) {
      const user::Dual d = user::score_mod(user::Dual(s.value, 1.0f), static_cast<i32>(batch), static_cast<i32>(head),
                                           row, key, p.mod_buffers);
      s = {d.value, d.derivative, d.derivative};
    }
    if constexpr (features.softcap) s.by_product *= 1.0f - x * x;  // tanh's own
    return s;
  }

  // Rows and keys past the end read the last one's bias, which exists.
  DEV float bias_at(i32 row, i32 key) const {
    if constexpr (features.bias != ScalarType::none)
      return element_at<features.bias>(p.bias, spread(p.bias_stride, row, key));
    else
      return 0.0f;
  }
  DEV bool masked_by_mod(i32 row, i32 key) const {
    return !user::mask_mod(static_cast<i32>(batch), static_cast<i32>(head), row, key, p.mod_buffers);
  }
  DEV const u32* mask_row(i32 row) const {
    return p.mask.bits + batch * p.mask.bits_stride[0] + head * p.mask.bits_stride[1] +
           min(row, band.seq_q - 1) * p.mask.bits_stride[2];
  }
  DEV bool masked(i32 row, i32 key) const {
    bool seen = true;
    if constexpr (features.bool_mask) seen = mask_row(row)[key / 32] >> key % 32 & 1;
    if constexpr (features.mask_mod) seen = seen && !masked_by_mod(row, key);
    return !seen;
  }
  // Only a forward has a tree, and its parameters are these. A walk along the row's ancestors: call it where it is
  // needed, beside the last keys.
  DEV TreeRow<i32> tree_row(i32 row) const {
    const auto& f = static_cast<const ForwardParams&>(p);
    const DraftTree tree{f.tree + batch * f.tree_stride[0], f.tree_stride[1], f.drafts};
    return TreeRow<i32>::of(tree, band.seq_q, band.seq_k, row);
  }
  // The first key that a tree may hide from rows that see it by the band; `hi` if there is none before.
  DEV i32 before_drafts(i32 hi) const {
    return features.tree ? min(hi, band.seq_k - static_cast<const ForwardParams&>(p).drafts) : hi;
  }
  DEV i64 spread(const long long (&stride)[4], i32 row, i32 key) const {
    return batch * stride[0] + head * stride[1] + min(row, band.seq_q - 1) * stride[2] +
           min(key, band.seq_k - 1) * stride[3];
  }
};

}  // namespace onepass
