// FP8 (e4m3) as FlashAttention-3 uses it, in simulation: scales per tensor or per block, incoherent processing, and the
// accumulator that Hopper's fp8 matrix unit really has.
#pragma once
#include <cmath>
#include <random>

#include "algebra/ceil_div.hpp"
#include "algebra/numerics.hpp"
#include "ladder/head.hpp"

namespace onepass::ladder {

inline constexpr double kLargestE4M3 = 448;

template <class T>
T to_e4m3(T x) {
  return static_cast<T>(to_float(from_float<f8e4m3>(static_cast<float>(static_cast<double>(x)))));
}
template <class T>
T magnitude(T x) {
  return T(std::abs(static_cast<double>(x)));
}
template <class T>
Format<T> e4m3_format() {
  return {1, to_e4m3<T>};
}

// Random signs, then a Hadamard transform over blocks of the largest power of two that divides d: an orthogonal map, so
// q . k is unchanged, and one large element is spread over the whole block.
template <class T>
class Incoherent {
 public:
  Incoherent(Index d, unsigned seed) : size_(d & -d) {
    std::mt19937 rng(seed);
    const double norm = 1.0 / std::sqrt(static_cast<double>(size_));
    for (Index i = 0; i < d; ++i) signs_.push_back(T(rng() % 2 == 0 ? norm : -norm));
  }
  void turn(Tile<T>& t) const {
    for (Index r = 0; r < t.rows(); ++r) {
      T* x = t.row(r);
      for (Index c = 0; c < t.cols(); ++c) x[c] = x[c] * signs_[static_cast<std::size_t>(c)];
      t.counts().pointwise_flops += t.cols();
      for (Index half = 1; half < size_; half *= 2) {
        for (Index c = 0; c < t.cols(); ++c) {
          if (c & half) continue;
          const T a = x[c], b = x[c + half];
          x[c] = a + b;
          x[c + half] = a - b;
        }
        t.counts().pointwise_flops += t.cols();
      }
    }
  }

 private:
  Index size_;
  std::vector<T> signs_;  // +-1 / sqrt(size)
};

// e4m3 values and the number each block of rows was divided by.
template <class T>
struct Quantised {
  Slow<T> values, scales;
  Index block = 1;  // rows per scale; a single scale if it covers all rows
  T scale(Machine<T>& machine, Index row) const { return machine.load(scales, row / block, 1)(0, 0); }
};

// One trip if a block is a tile; a scale for the whole tensor needs its maximum first, so a second one.
template <class T>
Quantised<T> quantise(Machine<T>& machine, const Slow<T>& x, Index tile_rows, bool per_tensor,
                      const Incoherent<T>* map) {
  const Index rows = x.rows(), block = per_tensor ? std::max<Index>(1, rows) : tile_rows;
  Quantised<T> q{machine.scratch(rows, x.cols(), e4m3_format<T>()), machine.scratch(ceil_div(rows, block), 1), block};
  const auto load = [&](Index row) {
    Tile<T> t = machine.load(x, row, std::min(tile_rows, rows - row));
    if (map) map->turn(t);
    return t;
  };
  const auto largest = [](const Tile<T>& t) {
    T most = T(0);
    for (Index r = 0; r < t.rows(); ++r) {
      for (Index c = 0; c < t.cols(); ++c) most = Arith<T>::max(most, magnitude(t(r, c)));
    }
    t.counts().pointwise_flops += t.rows() * t.cols();
    return most;
  };
  T most = T(0);
  for (Index row = 0; per_tensor && row < rows; row += tile_rows) {
    most = Arith<T>::max(most, largest(load(row)));
    machine.counts.pointwise_flops += 1;
  }
  for (Index row = 0; row < rows; row += tile_rows) {
    Tile<T> t = load(row);
    if (!per_tensor) most = largest(t);
    Tile<T> step = machine.tile(1, 1);
    step(0, 0) = Arith<T>::if_zero(most, T(1), most / T(kLargestE4M3));
    ladder::scale(t, T(1) / step(0, 0));
    machine.counts.pointwise_flops += 2;
    machine.store(t, q.values, row);
    if (!per_tensor || row == 0) machine.store(step, q.scales, row / block);
  }
  return q;
}

// x cut toward zero to a multiple of 2^-13 of the power of two in `largest`.
inline double cut(double x, double largest) {
  constexpr int kFractionBits = 13;
  const double step = std::ldexp(1.0, std::ilogb(largest) - kFractionBits);
  return std::trunc(x / step) * step;
}

// Hopper's fp8 unit: 32 products and the accumulator are aligned to the largest of them, cut to 13 fraction bits toward
// zero, and added. With V of mean 1 this model makes O too small by 1.0, 5.0 and 18.4 % at 1k, 4k and 16k keys (an
// H100: 1, 5 and 18); zero-mean V hides it.
inline double add_truncated(double sum, const double* products, Index count) {
  constexpr Index kTerms = 32;
  for (Index from = 0; from < count; from += kTerms) {
    const Index to = std::min(count, from + kTerms);
    double largest = std::abs(sum), next = 0;
    for (Index k = from; k < to; ++k) largest = std::max(largest, std::abs(products[k]));
    if (largest == 0) continue;
    next = cut(sum, largest);
    for (Index k = from; k < to; ++k) next += cut(products[k], largest);
    sum = next == 0 ? 0 : cut(next, std::abs(next));
  }
  return sum;
}

// c += a b with that accumulator. The products themselves are exact: e4m3 has 4 significant bits.
template <class T>
void add_product_truncated(Tile<T>& c, const Tile<T>& a, const Tile<T>& b) {
  std::vector<double> products(static_cast<std::size_t>(a.cols()));
  for (Index i = 0; i < c.rows(); ++i) {
    for (Index j = 0; j < c.cols(); ++j) {
      for (Index k = 0; k < a.cols(); ++k) {
        products[static_cast<std::size_t>(k)] = static_cast<double>(a(i, k)) * static_cast<double>(b(k, j));
      }
      c(i, j) = T(add_truncated(static_cast<double>(c(i, j)), products.data(), a.cols()));
    }
  }
  c.counts().matmul_flops += 2 * c.rows() * c.cols() * a.cols();
}

}  // namespace onepass::ladder
