#include "reference/softmax.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "problem/softmax/softmax_problem.hpp"

namespace onepass::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// y of the finite part of a row: entries of -inf stay what hidden ones are.
template <class T>
void forward(const Problem& p, const Tensors& a, std::int64_t row, std::vector<double>& y, double& lse) {
  const std::vector<double> x = visible_row(p, a, row);
  const T scale = static_cast<T>(p.effective_scale()), hidden = static_cast<T>(p.log ? -kInf : 0.0);
  std::vector<T> s(x.size());
  T m = -static_cast<T>(kInf), l = 0;
  for (std::size_t j = 0; j < x.size(); ++j) {
    if (x[j] == -kInf) continue;
    s[j] = scale * static_cast<T>(x[j]);
    m = s[j] > m || s[j] != s[j] ? s[j] : m;
    if (m != m) break;
  }
  for (std::size_t j = 0; j < x.size(); ++j) {
    if (x[j] == -kInf) continue;
    s[j] = scale * static_cast<T>(x[j]);
    if (s[j] != -static_cast<T>(kInf)) l += std::exp(s[j] - m);  // as +inf is beside a negative scale
  }
  const T natural = p.row_lse
                        ? static_cast<T>(static_cast<const float*>(a.row_lse.data)[row_at(p, p.layout.row_lse, row)])
                        : m + std::log(l);
  const bool empty = p.row_lse ? natural == -static_cast<T>(kInf) : l == 0;
  lse = empty ? -kInf : double{natural};
  for (std::size_t j = 0; j < x.size(); ++j) {
    if (empty || x[j] == -kInf || s[j] == -static_cast<T>(kInf))
      y[j] = double{hidden};
    else if (p.log)
      y[j] = double{p.row_lse ? s[j] - natural : (s[j] - m) - std::log(l)};
    else
      y[j] = double{p.row_lse ? std::exp(s[j] - natural) : std::exp(s[j] - m) / l};
  }
}

template <class T>
void backward(const Problem& p, const Tensors& a, std::int64_t row, std::vector<double>& dx) {
  const std::int64_t n = p.seq_k, y_at = row_at(p, p.layout.y, row), dy_at = row_at(p, p.layout.dy, row);
  const T scale = static_cast<T>(p.effective_scale());
  const auto y = [&](std::int64_t j) {
    return static_cast<T>(load_element(a.y.data, p.out_dtype, y_at + j * p.layout.y[3]));
  };
  const auto dy = [&](std::int64_t j) {
    return static_cast<T>(load_element(a.dy.data, p.out_dtype, dy_at + j * p.layout.dy[3]));
  };
  const T hidden = static_cast<T>(p.log ? -kInf : 0.0);
  T sum = 0;
  for (std::int64_t j = 0; j < n; ++j)
    if (y(j) != hidden) sum += p.log ? dy(j) : dy(j) * y(j);
  for (std::int64_t j = 0; j < n; ++j) {
    const T g = p.log ? dy(j) - std::exp(y(j)) * sum : y(j) * (dy(j) - sum);
    dx[static_cast<std::size_t>(j)] = y(j) == hidden ? 0.0 : double{scale * g};
  }
}

template <class T>
Dense dense(const Problem& p, const Tensors& a) {
  const auto rows = static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q), n = static_cast<std::size_t>(p.seq_k);
  Dense result{std::vector<double>(rows * n), std::vector<double>(rows), {}, {}};
  std::vector<double> one(n);
  const DType stored = !is_backward(p.op) ? p.out_dtype : p.dtype;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = static_cast<std::int64_t>(r);
    !is_backward(p.op) ? forward<T>(p, a, row, one, result.lse[r]) : backward<T>(p, a, row, one);
    for (std::size_t j = 0; j < n; ++j) {
      if constexpr (std::is_same_v<T, float>) {
        with_float_type(stored, [&](auto zero) {
          one[j] = double{to_float(from_float<decltype(zero)>(static_cast<float>(one[j])))};
        });
      }
      result.out[r * n + j] = one[j];
    }
  }
  return result;
}

}  // namespace

std::int64_t row_at(const Problem& p, const Dims& stride, std::int64_t row) { return RowPlace(stride, p)(row); }

std::vector<double> visible_row(const Problem& p, const Tensors& a, std::int64_t row) {
  std::vector<double> x(static_cast<std::size_t>(p.seq_k));
  const std::int64_t at = row_at(p, p.layout.x, row), mask_at = p.bool_mask ? row_at(p, p.layout.bool_mask, row) : 0;
  for (std::int64_t j = 0; j < p.seq_k; ++j) {
    const bool seen =
        !p.bool_mask || static_cast<const std::uint8_t*>(a.bool_mask.data)[mask_at + j * p.layout.bool_mask[3]] != 0;
    x[static_cast<std::size_t>(j)] = seen ? double{load_element(a.x.data, p.dtype, at + j * p.layout.x[3])} : -kInf;
  }
  return x;
}

Dense softmax_oracle(const Problem& p, const Tensors& a) { return dense<double>(p, a); }
Dense softmax_base(const Problem& p, const Tensors& a) { return dense<float>(p, a); }

}  // namespace onepass::reference
