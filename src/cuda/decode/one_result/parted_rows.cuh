// One result per row where a tile's keys have parts with sums of their own. A warp has one part of its team's tile
// (shared_tiles.cuh), or all parts of its rows' tile (warps.cuh, warpgroups.cuh). The steps of a row are the same, so
// its bits are.
//
// A row takes a tile lazily if the sums of all parts stay in range, else by the tile's maximum (attention/softmax.cuh).
#pragma once
#include "cuda/decode/combine.cuh"
#include "cuda/decode/operands.cuh"

namespace onepass::decode {

// Part `at` of an array of n elements.
template <i32 n, class T>
DEV auto part_of(T* x, i32 at) -> T (&)[n] {
  return *reinterpret_cast<T(*)[n]>(x + at * n);
}

// A lane's two rows, and its sums over `parts` parts of each tile.
template <i32 parts>
struct PartedRows : LargestScores<forward_features.row_max> {
  static constexpr i32 kKeys = parts * kPartN;
  using TileScores = float[kKeys / 2];
  using TileWeights = Weights<kKeys>;
  struct TileSums {
    float l[parts][2], norm[parts][2];
  };
  float m[2] = {kNegInf, kNegInf};
  TileSums sums = {};

  DEV RowState<float> state(i32 i) const { return {m[i], 0.0f}; }

  // Weights by the references that there are. keeps[i]: this lane's sums of row i are in range.
  template <class Unit>
  DEV void weigh(const TileScores& s, TileWeights& w, TileSums& tile, bool (&keeps)[2], const Unit& unit) const {
    const decltype(unit.keep({})) r[2] = {unit.keep(state(0)), unit.keep(state(1))};
    weigh_by(s, w, tile, [&](float x, int row) { return unit.lazy_exponent(x, r[row]); });
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      keeps[i] = unit.lazy(state(i));
#pragma unroll
      for (i32 part = 0; part < parts; ++part) keeps[i] = keeps[i] && tile.l[part][i] <= kLazyLimit;
    }
  }
  // Takes these sums in.
  DEV void take(const TileSums& tile) {
#pragma unroll
    for (i32 part = 0; part < parts; ++part) {
#pragma unroll
      for (i32 i = 0; i < 2; ++i) {
        sums.l[part][i] += tile.l[part][i];
        if constexpr (kRoundedSums) sums.norm[part][i] += tile.norm[part][i];
      }
    }
  }
  // Takes a tile in whose maximum is tile_max. Rows that do not keep their reference advance it, and O with it.
  template <class Unit, i32 N>
  DEV void take_exactly(const TileScores& s, TileWeights& w, float (&o)[N], const float (&tile_max)[2],
                        const bool (&keeps)[2], const Unit& unit) {
    decltype(unit.keep({})) r[2] = {unit.keep(state(0)), unit.keep(state(1))};
#pragma unroll
    for (i32 i = 0; i < 2; ++i) {
      RowState<float> advanced = state(i);
      const auto reference = unit.advance(advanced, tile_max[i]);  // by all lanes
      if (!keeps[i]) m[i] = advanced.m, r[i] = reference;
    }
    multiply_two_rows(o, r[0].alpha, r[1].alpha);
    TileSums tile;
    weigh_by(s, w, tile, [&](float x, int row) {
      return keeps[row] ? unit.lazy_exponent(x, r[row]) : unit.exact_exponent(x, r[row]);
    });
#pragma unroll
    for (i32 part = 0; part < parts; ++part) {
#pragma unroll
      for (i32 i = 0; i < 2; ++i) {  // rounded once, in every kernel
        sums.l[part][i] = __fmaf_rn(sums.l[part][i], r[i].alpha, tile.l[part][i]);
        if constexpr (kRoundedSums) sums.norm[part][i] = __fmaf_rn(sums.norm[part][i], r[i].alpha, tile.norm[part][i]);
      }
    }
  }
  // Row i's sums over a part of its keys, to the whole quad.
  DEV Sums part_sums(i32 part, i32 i) const {
    return {{m[i], quad_sum(sums.l[part][i])}, kRoundedSums ? quad_sum(sums.norm[part][i]) : 0.0f, this->largest_of(i)};
  }

 private:
  template <class ExponentOf>
  static DEV void weigh_by(const TileScores& s, TileWeights& w, TileSums& tile, const ExponentOf& exponent_of) {
    SafeTerms none;
#pragma unroll
    for (i32 part = 0; part < parts; ++part) {
      const auto put = [&](int j, const float(&four)[4]) {
        pack_four<Product, kKeys / 2>(part * (kPartN / 2) + j, four, w);
      };
      exponentiate<Product, kRoundedSums>(part_of<kPartN / 2>(s, part), put, exponent_of, tile.l[part], tile.norm[part],
                                          none, KeepAll{});
    }
  }
};
// The sums of a row's parts, in their order, are those of its tiles.
DEV void add_part(Sums& all, const Sums& part) {
  all.state.l += part.state.l, all.norm += part.norm;
  all.see(part.most);
}

// Rows of a kernel that does not hold prompts.
template <bool kParted>
struct RowsOf {
  using Type = LaneRows;
};
template <>
struct RowsOf<true> {
  using Type = PartedRows<1>;
};
using OwnRows = RowsOf<kSharesTiles>::Type;

}  // namespace onepass::decode
