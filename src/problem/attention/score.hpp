// From products of q and k to scores, number by number: the features of docs/reference/conventions.md and their order.
// The oracles and the fallbacks compute by this text; src/cpu/common/score_chain.hpp is the same over vectors.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "algebra/numerics.hpp"
#include "algebra/philox.hpp"
#include "algebra/scalar.hpp"
#include "algebra/tree.hpp"
#include "expression/expression.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass {

// A call's dropout, which counts batch entries, heads, rows and keys of the call.
inline Dropout dropout_of(const Problem& p, std::uint64_t seed) {
  Dropout dropout = Dropout::of(p.dropout_p, seed);
  const auto [batch, head, row, key] = p.dropout_start;
  dropout.first_batch = batch, dropout.first_head = head, dropout.first_row = row, dropout.first_block = key / 4;
  return dropout;
}
// The seed of a call whose tensors the CPU can read.
inline std::uint64_t seed_of(const Problem& p, const Tensors& t) {
  return p.dropout_seed ? static_cast<std::uint64_t>(*static_cast<const std::int64_t*>(t.dropout_seed.data)) : p.seed;
}
inline Dropout dropout_of(const Problem& p, const Tensors& t) { return dropout_of(p, seed_of(p, t)); }

// A bias or a boolean mask over [batch, heads, rows, keys].
struct SideTensor {
  const void* data = nullptr;  // nullptr: there is none
  DType dtype = DType::f32;
  Dims stride{};  // in elements; 0 where it is broadcast

  bool given() const { return data != nullptr; }
  // The element of a row's key 0; key_stride() leads from key to key.
  std::int64_t row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return batch * stride[0] + head * stride[1] + row * stride[2];
  }
  std::int64_t key_stride() const { return stride[3]; }
};

// A block mask: the states of tiles over [batch, heads, tiles of rows, tiles of keys].
struct TileStates {
  enum State { empty, mixed, full };
  SideTensor states;
  std::int64_t rows = 1, keys = 1;  // of a tile

  State of(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t key) const {
    if (!states.given()) return mixed;
    const std::int32_t state = static_cast<const std::int32_t*>(
        states.data)[states.row(batch, head, row / rows) + key / keys * states.key_stride()];
    return state == 0 ? empty : state == 2 ? full : mixed;
  }
};

// The steps from products to scores; the same for every row of a call.
struct ScoreParams {
  double scale = 1.0;
  float softcap = 0.0f;           // 0: none
  SideTensor bias, mask;          // mask: a byte each, 0 hides
  TileStates tiles;               // kernels never see one (problem/block_mask.hpp)
  const float* slopes = nullptr;  // ALiBi's; nullptr: none
  std::int64_t slope_batch_stride = 0, slope_head_stride = 0;
  const Mods* mods = nullptr;  // nullptr: neither score_mod nor mask_mod
  DraftTree tree;              // of batch entry 0
  std::int64_t tree_batch_stride = 0;

  // True if scores are more than scaled products within a band.
  bool transforms() const { return softcap > 0 || bias.given() || slopes || (mods && mods->score.given()); }
  bool hides() const { return mask.given() || (mods && mods->mask.given()); }

  DraftTree tree_of(std::int64_t batch) const {
    return tree.given() ? DraftTree{tree.parents + batch * tree_batch_stride, tree.stride, tree.drafts} : tree;
  }
  float slope(std::int64_t batch, std::int64_t head) const {
    return slopes[batch * slope_batch_stride + head * slope_head_stride];
  }
};

inline ScoreParams score_params(const Problem& p, const Tensors& a, const Mods* mods = nullptr) {
  ScoreParams s;
  s.scale = p.effective_scale();
  s.softcap = p.softcap;
  if (p.bias) s.bias = {a.bias.data, a.bias.dtype, broadcast_strides(a.bias)};
  if (p.bool_mask) s.mask = {a.bool_mask.data, a.bool_mask.dtype, broadcast_strides(a.bool_mask)};
  if (p.block_mask)
    s.tiles = {{a.block_mask.data, a.block_mask.dtype, broadcast_strides(a.block_mask)}, p.tile_q(), p.tile_k()};
  if (p.alibi) {
    const ConstTensor& t = a.alibi_slopes;
    s.slopes = static_cast<const float*>(t.data);
    s.slope_batch_stride = t.rank == 2 ? t.stride[0] : 0;
    s.slope_head_stride = t.stride[t.rank - 1];
  }
  if (mods && mods->given()) s.mods = mods;
  if (p.drafts > 0) {
    s.tree = {static_cast<const std::int32_t*>(a.tree.data), a.tree.stride[1], static_cast<int>(p.drafts)};
    s.tree_batch_stride = a.tree.stride[0];
  }
  return s;
}

// A score, and its derivative by the scaled product: what the backward pass multiplies dS with, before the scale.
template <class T>
struct Score {
  T value, derivative;
};

// The scores of one head of one batch entry (`batch` counts entries, also when packed). T: float or double.
struct HeadScores {
  const ScoreParams& params;
  std::int64_t batch, head;
  BandMask band;

  // Steps 1 to 3 without score_mod.
  template <class T>
  Score<T> transformed_score(T product, std::int64_t row, std::int64_t key) const {
    const Score<T> s = capped(product * static_cast<T>(params.scale));
    return {moved(s.value, row, key), s.derivative};
  }
  template <class T>
  T transformed(T product, std::int64_t row, std::int64_t key) const {
    return transformed_score(product, row, key).value;
  }
  // |a(i) - j|: what ALiBi multiplies a slope with.
  std::int64_t distance(std::int64_t row, std::int64_t key) const { return std::abs(row + band.shift - key); }
  bool visible_in_mask(std::int64_t row, std::int64_t key) const {
    return !params.mask.given() || static_cast<const std::uint8_t*>(params.mask.data)[at(params.mask, row, key)] != 0;
  }
  TileStates::State tile(std::int64_t row, std::int64_t key) const { return params.tiles.of(batch, head, row, key); }
  TreeRow<std::int64_t> tree_row(std::int64_t row) const {
    return TreeRow<std::int64_t>::of(params.tree_of(batch), band.seq_q, band.seq_k, row);
  }
  bool visible(std::int64_t row, std::int64_t key) const {
    return band.visible(row, key) && visible_in_mask(row, key) && tile(row, key) != TileStates::empty &&
           tree_row(row).sees(key);
  }

  // The score of a product: -inf if the key is hidden. (score_mod and mask_mod work on tiles: src/expression.)
  template <class T>
  Score<T> score(T product, std::int64_t row, std::int64_t key) const {
    if (!visible(row, key)) return {Arith<T>::neg_inf(), T(0)};
    return transformed_score(product, row, key);
  }

 private:
  std::int64_t at(const SideTensor& t, std::int64_t row, std::int64_t key) const {
    return t.row(batch, head, row) + key * t.key_stride();
  }
  template <class T>
  Score<T> capped(T x) const {
    if (params.softcap <= 0) return {x, T(1)};
    const T cap = static_cast<T>(params.softcap), t = std::tanh(x / cap);
    return {cap * t, T(1) - t * t};
  }
  // By what does not depend on the score.
  template <class T>
  T moved(T s, std::int64_t row, std::int64_t key) const {
    if (params.bias.given())
      s += static_cast<T>(load_element(params.bias.data, params.bias.dtype, at(params.bias, row, key)));
    if (params.slopes) s -= static_cast<T>(params.slope(batch, head)) * static_cast<T>(distance(row, key));
    return s;
  }
};

}  // namespace onepass
