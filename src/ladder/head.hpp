// The input of the attention steps: one head in slow memory.
#pragma once
#include <cmath>

#include "ladder/tile_math.hpp"

namespace onepass::ladder {

using TileKind = onepass::Tile;  // skip, partial, full (algebra/mask.hpp)

template <class T>
struct Head {
  Slow<T> q, k, v;  // [seq_q, d], [seq_k, d], [seq_k, dv]
  BandMask mask;
  Dropout dropout;  // of batch 0, head 0

  Index seq_q() const { return q.rows(); }
  Index seq_k() const { return k.rows(); }
  Index d() const { return q.cols(); }
  Index dv() const { return v.cols(); }
  bool masked() const { return mask.left >= 0 || mask.right >= 0; }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(d())); }
  T scale_log2() const { return T(scale() * kLog2e); }  // scores are kept in log2 units
};

// O [seq_q, dv], and what the backward pass needs: (m, l) or the natural LSE of every row.
template <class T>
struct Forward {
  Slow<T> o, stats;
};

template <class T>
struct Gradients {
  Slow<T> dq, dk, dv;
};

// scores = scale q k^T in log2 units
template <class T>
Tile<T> scores_of(Machine<T>& machine, const Head<T>& head, const Tile<T>& q, const Tile<T>& k) {
  Tile<T> s = machine.tile(q.rows(), k.rows());
  add_product_nt(s, q, k);
  scale(s, head.scale_log2());
  return s;
}

}  // namespace onepass::ladder
