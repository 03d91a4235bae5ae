#include "check/draw/rows.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "algebra/numerics.hpp"
#include "check/draw/random.hpp"
#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"

namespace onepass::check {
namespace {

enum Stream : std::int64_t { kScores = 100, kLse, kGradients, kX, kW, kColumns };

class Rows {
 public:
  Rows(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution)
      : p_(p), t_(t), seed_(seed), distribution_(distribution), row_(static_cast<std::size_t>(p.seq_k)) {}

  void each(void (Rows::*draw)(std::int64_t row)) {
    for (std::int64_t r = 0; r < p_.batch * p_.heads_q * p_.seq_q; ++r) (this->*draw)(r);
  }
  void forward(std::int64_t r) {
    scores(r);
    put(t_.x, r);
    if (p_.row_lse) row_lse(r);
  }
  // normal: N(1, 1). rising: rows of 17 magnitudes, 1e-8 to 1e8 (fp16: 1e-2 to 1e2). one_hot: one element in 500 is 100
  // times as large. huge: up to 1e30 (fp16: 1e4), some rows of zeros. If the seed is odd, one row in 40 has a NaN or an
  // infinity.
  void numbers(std::int64_t r) {
    Random random(seed_, {kScores, r});
    const double narrow = p_.dtype == DType::f16 ? 0.25 : 1.0;
    for (float& x : row_) {
      const double normal = double{random.normal()};
      switch (distribution_) {
        case Distribution::normal: x = static_cast<float>(1 + normal); break;
        case Distribution::rising:
          x = static_cast<float>(normal * std::pow(10.0, narrow * static_cast<double>(r % 17 - 8)));
          break;
        case Distribution::one_hot: x = static_cast<float>(normal * (random.below(500) == 0 ? 100 : 1)); break;
        case Distribution::huge:
          x = static_cast<float>(r % 7 == 0 ? 0 : normal * (p_.dtype == DType::f16 ? 1e4 : 1e30));
          break;
      }
    }
    if (seed_ % 2 == 1 && r % 40 == 39)
      row_[static_cast<std::size_t>(r) % row_.size()] = r % 80 == 39 ? NAN : -INFINITY;
    put(t_.x, r);
  }
  void backward(std::int64_t r) {
    scores(r);
    double sum = 0;
    for (const float x : row_) sum += std::exp(double{x});
    for (float& x : row_)
      x = static_cast<float>(p_.log ? double{x} - std::log(sum) : sum > 0 ? std::exp(double{x}) / sum : 0.0);
    put(t_.y, r);
    Random random(seed_, {kGradients, r});
    const std::int64_t at = RowPlace(t_.y.stride, p_)(r);
    for (std::size_t j = 0; j < row_.size(); ++j) {
      const float y = load_element(t_.y.data, p_.out_dtype, at + static_cast<std::int64_t>(j) * t_.y.stride[3]);
      row_[j] = y == (p_.log ? -INFINITY : 0.0f) ? NAN : random.normal();
    }
    put(t_.dy, r);
  }

 private:
  void scores(std::int64_t r) {
    Random random(seed_, {kScores, r});
    const bool forward = !is_backward(p_.op);
    const double scale = forward && p_.effective_scale() != 0 ? p_.effective_scale() : 1.0;
    const double huge = std::min(3e4 * std::pow(10.0, 5.0 * static_cast<double>(r % 5)),
                                 p_.dtype == DType::f16 ? 1e4 * std::abs(scale) : 1e30);
    const auto one = p_.seq_k == 0 ? 0 : static_cast<std::size_t>(random.below(p_.seq_k));
    const float rise = p_.dtype == DType::f32 ? 2.5f / 64 : std::min(2.5f / 64, 40 / static_cast<float>(p_.seq_k));
    for (std::size_t j = 0; j < row_.size(); ++j) {
      double s = 0;
      switch (distribution_) {
        case Distribution::normal: s = 4.0 * double{random.normal()}; break;
        case Distribution::rising:
          s = double{rise * static_cast<float>(r % 2 == 0 ? j : row_.size() - j) + random.normal()};
          break;
        case Distribution::one_hot: s = double{(j == one ? 30.0f : 0.0f) + random.normal()}; break;
        case Distribution::huge: s = (forward ? huge : 4.0) * double{random.normal()}; break;
      }
      row_[j] = seed_ % 2 == 1 && random.below(40) == 0 ? -INFINITY : static_cast<float>(s / scale);
    }
  }
  // The LSE of a row that this row is a piece of: somewhat above its own, and -inf in every seventh row.
  void row_lse(std::int64_t r) const {
    double most = -INFINITY, sum = 0;
    const auto score = [&](float x) { return p_.effective_scale() * double{x}; };
    for (const float x : row_) most = std::max(most, x == -INFINITY ? most : score(x));
    for (const float x : row_) sum += x == -INFINITY ? 0 : std::exp(score(x) - most);
    const double more = std::abs(double{Random(seed_, {kLse, r}).normal()});
    const ConstTensor& t = t_.row_lse;
    Inputs::writable<float>(t)[RowPlace(t.stride, p_)(r)] =
        r % 7 == 6 || sum == 0 ? -INFINITY : static_cast<float>(most + std::log(sum) + more);
  }
  void put(const ConstTensor& t, std::int64_t r) const {
    const std::int64_t at = RowPlace(t.stride, p_)(r);
    for (std::size_t j = 0; j < row_.size(); ++j)
      store_element(const_cast<void*>(t.data), t.dtype, at + static_cast<std::int64_t>(j) * t.stride[3], row_[j]);
  }

  const Problem& p_;
  const Tensors& t_;
  std::uint64_t seed_;
  Distribution distribution_;
  std::vector<float> row_;
};

}  // namespace

void draw_matrices(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  const auto draw = [&](const ConstTensor& tensor, std::int64_t rows, std::int64_t columns, Stream stream,
                        auto number) {
    for (std::int64_t i = 0; i < rows; ++i) {
      Random random(seed, {stream, i});
      const std::int64_t one = columns > 0 ? random.below(columns) : 0;
      for (std::int64_t j = 0; j < columns; ++j)
        store_element(const_cast<void*>(tensor.data), tensor.dtype, i * tensor.stride[0] + j * tensor.stride[1],
                      number(i, j == one, 0.2f + random.normal()));
    }
  };
  const bool narrow = p.dtype == DType::f16;
  draw(t.x, p.m, p.k, kX, [&](std::int64_t i, bool one, float x) {
    if (distribution == Distribution::one_hot && one) return 100 * x;
    return distribution == Distribution::huge ? x * std::pow(10.0f, static_cast<float>(i % (narrow ? 2 : 20))) : x;
  });
  draw(t.w, p.n, p.k, kW,
       [&](std::int64_t, bool, float x) { return distribution == Distribution::rising ? x + 1.0f : x; });
  if (!p.column_bias) return;
  ConstTensor columns = t.column_bias;
  columns.stride[1] = columns.stride[0];
  columns.stride[0] = 0;
  draw(columns, 1, p.n, kColumns, [](std::int64_t, bool, float x) { return 4 * x; });
}

void draw_softmax(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  Rows(p, t, seed, distribution).each(&Rows::forward);
}
void draw_softmax_backward(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  Rows(p, t, seed, distribution).each(&Rows::backward);
}
void draw_numbers(const Problem& p, const Tensors& t, std::uint64_t seed, Distribution distribution) {
  Rows(p, t, seed, distribution).each(&Rows::numbers);
}

}  // namespace onepass::check
