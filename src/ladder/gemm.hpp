// A matrix product in slow memory, as one kernel of standard attention does it: output tiles stay in fast memory.
//
// The tiles are chosen for the least traffic that fits: with enough fast memory every matrix moves exactly once.
#pragma once
#include <limits>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "ladder/tile_math.hpp"

namespace onepass::ladder {

enum class Turn { none, a, b };  // c = a b, c = a^T b, c = a b^T

struct GemmTiles {
  Index mb = 0, nb = 0, kb = 0;  // c tile [mb, nb], inner block kb
  // Elements of a, b and c that move: b stays where it is if its panel is whole (kb = k).
  Index a_moves(Index m, Index n, Index k) const { return m * k * ceil_div(n, nb); }
  Index b_moves(Index m, Index n, Index k) const { return n * k * (kb == k ? 1 : ceil_div(m, mb)); }
  Index c_moves(Index m, Index n) const { return m * n; }
};

// Least traffic over nb and kb halved from n and k; mb takes what memory is left. Widths are bytes per element.
inline GemmTiles gemm_tiles(Index m, Index n, Index k, Index a_width, Index b_width, Index work_width,
                            Index fast_bytes) {
  GemmTiles best;
  Index least = std::numeric_limits<Index>::max();
  for (Index nb = n;; nb = (nb + 1) / 2) {
    for (Index kb = k;; kb = (kb + 1) / 2) {
      const Index mb = std::min(m, (fast_bytes - nb * kb * b_width) / (kb * a_width + nb * work_width));
      if (mb >= 1) {
        const GemmTiles t{mb, nb, kb};
        const Index traffic = t.a_moves(m, n, k) * a_width + t.b_moves(m, n, k) * b_width;
        if (traffic < least) {
          least = traffic;
          best = t;
        }
      }
      if (kb == 1) break;
    }
    if (nb == 1) break;
  }
  if (best.mb == 0) {
    throw Error(ErrorCode::bad_value,
                text("fast memory of ", fast_bytes, " bytes cannot hold one element of each matrix"));
  }
  return best;
}

// finish(c tile, row, col) runs before the tile is stored.
template <class T, class Finish>
void gemm(Machine<T>& machine, const Slow<T>& a, const Slow<T>& b, Slow<T>& c, Turn turn, Finish&& finish) {
  const Index m = c.rows(), n = c.cols(), k = turn == Turn::a ? a.rows() : a.cols();
  if (m == 0 || n == 0 || k == 0) return;
  const GemmTiles t = gemm_tiles(m, n, k, a.format().bytes, b.format().bytes, sizeof(T), machine.fast_capacity());
  const auto load_b = [&](Index k0, Index kb, Index n0, Index nb) {
    return turn == Turn::b ? machine.load(b, n0, nb, k0, kb) : machine.load(b, k0, kb, n0, nb);
  };
  const auto multiply = [&](Tile<T>& tile, Index m0, Index k0, Index kb, const Tile<T>& right) {
    if (turn == Turn::a)
      add_product_tn(tile, machine.load(a, k0, kb, m0, tile.rows()), right);
    else if (turn == Turn::b)
      add_product_nt(tile, machine.load(a, m0, tile.rows(), k0, kb), right);
    else
      add_product(tile, machine.load(a, m0, tile.rows(), k0, kb), right);
  };
  const auto rows = [&](Index n0, Index nb, auto&& fill) {
    for (Index m0 = 0; m0 < m; m0 += t.mb) {
      Tile<T> tile = machine.tile(std::min(t.mb, m - m0), nb);
      fill(tile, m0);
      finish(tile, m0, n0);
      machine.store(tile, c, m0, n0);
    }
  };
  for (Index n0 = 0; n0 < n; n0 += t.nb) {
    const Index nb = std::min(t.nb, n - n0);
    if (t.kb == k) {
      const Tile<T> panel = load_b(0, k, n0, nb);
      rows(n0, nb, [&](Tile<T>& tile, Index m0) { multiply(tile, m0, 0, k, panel); });
    } else {
      rows(n0, nb, [&](Tile<T>& tile, Index m0) {
        for (Index k0 = 0; k0 < k; k0 += t.kb) {
          const Index kb = std::min(t.kb, k - k0);
          multiply(tile, m0, k0, kb, load_b(k0, kb, n0, nb));
        }
      });
    }
  }
}

template <class T>
void gemm(Machine<T>& machine, const Slow<T>& a, const Slow<T>& b, Slow<T>& c, Turn turn) {
  gemm(machine, a, b, c, turn, [](Tile<T>&, Index, Index) {});
}

}  // namespace onepass::ladder
