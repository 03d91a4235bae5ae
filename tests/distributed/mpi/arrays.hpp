// Tensors of the tests over MPI: the same random numbers on every rank, and the rows of a rank.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "algebra/numerics.hpp"
#include "onepass/context_parallel.hpp"
#include "onepass/tensor.hpp"

namespace onepass::test {

using Index = std::int64_t;

// A row-major tensor with its memory.
class Array {
 public:
  Array() = default;
  Array(DType dtype, std::vector<Index> shape) : shape_(std::move(shape)), dtype_(dtype) {
    Index count = 1;
    for (const Index n : shape_) count *= n;
    count_ = static_cast<std::size_t>(count);
    memory_.resize((count_ + 1) * size_of(dtype));
  }
  bool given() const { return !shape_.empty(); }
  DType dtype() const { return dtype_; }
  const std::vector<Index>& shape() const { return shape_; }
  std::size_t count() const { return count_; }
  float at(std::size_t i) const { return load_element(memory_.data(), dtype_, static_cast<Index>(i)); }
  void set(std::size_t i, float x) { store_element(memory_.data(), dtype_, static_cast<Index>(i), x); }
  std::byte* data() { return memory_.data(); }
  std::size_t bytes() const { return count_ * size_of(dtype_); }
  Tensor tensor() {
    if (!given()) return {};
    Tensor t(memory_.data(), dtype_, {});
    t.rank = static_cast<int>(shape_.size());
    Index step = 1;
    for (std::size_t i = shape_.size(); i-- > 0; step *= shape_[i]) t.shape[i] = shape_[i], t.stride[i] = step;
    return t;
  }

 private:
  std::vector<std::byte> memory_{};
  std::vector<Index> shape_{};
  DType dtype_ = DType::f32;
  std::size_t count_ = 0;
};

inline Array random_array(DType dtype, std::vector<Index> shape, unsigned seed, float spread = 1) {
  Array array(dtype, std::move(shape));
  std::mt19937 draw(seed);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < array.count(); ++i) array.set(i, spread * normal(draw));
  return array;
}

inline Array converted(const Array& from, DType dtype) {
  if (!from.given()) return {};
  Array to(dtype, from.shape());
  for (std::size_t i = 0; i < to.count(); ++i) to.set(i, from.at(i));
  return to;
}

// f(element of the whole tensor, element of the shard) of a rank's rows, which are dimension `dim`.
template <class F>
void each_element(const std::vector<Index>& shape, std::size_t dim, const std::vector<context_parallel::Piece>& pieces,
                  const F& f) {
  Index outer = 1, inner = 1, rows = 0;
  for (std::size_t i = 0; i < dim; ++i) outer *= shape[i];
  for (std::size_t i = dim + 1; i < shape.size(); ++i) inner *= shape[i];
  for (const auto& piece : pieces) rows += piece.rows.size();
  for (Index o = 0; o < outer; ++o) {
    for (const auto& piece : pieces) {
      for (Index r = 0; r < piece.rows.size(); ++r) {
        for (Index x = 0; x < inner; ++x) {
          f(static_cast<std::size_t>((o * shape[dim] + piece.positions.begin + r) * inner + x),
            static_cast<std::size_t>((o * rows + piece.rows.begin + r) * inner + x));
        }
      }
    }
  }
}

// The rows of a rank, which are dimension 2.
inline Array shard(const Array& whole, const context_parallel::Layout& layout, Index rank) {
  if (!whole.given() || whole.shape()[2] != layout.length()) return whole;
  std::vector<Index> shape = whole.shape();
  shape[2] = layout.count(rank);
  Array mine(whole.dtype(), shape);
  each_element(whole.shape(), 2, layout.runs(rank),
               [&](std::size_t from, std::size_t to) { mine.set(to, whole.at(from)); });
  return mine;
}

// All gradients and results of a call.
struct Results {
  Array out, lse, row_max, dq, dk, dv, dsinks, dslopes, dbias;
  template <class F>
  static void each(const F& f) {
    f("out", &Results::out), f("lse", &Results::lse), f("row_max", &Results::row_max), f("dq", &Results::dq),
        f("dk", &Results::dk);
    f("dv", &Results::dv), f("dsinks", &Results::dsinks), f("dslopes", &Results::dslopes), f("dbias", &Results::dbias);
  }
};

}  // namespace onepass::test
