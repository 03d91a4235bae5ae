#include "reference/flat_gemm.hpp"

#include <cmath>

namespace onepass::reference {
namespace {

std::vector<float> numbers(const ConstTensor& t) {
  std::vector<float> all;
  for (std::int64_t i = 0; i < t.shape[0]; ++i)
    for (std::int64_t j = 0; j < t.shape[1]; ++j)
      all.push_back(load_element(t.data, t.dtype, i * t.stride[0] + j * t.stride[1]));
  return all;
}

template <class T>
Dense product(const Problem& p, const Tensors& a) {
  const std::vector<float> x = numbers(a.x), w = numbers(a.w);
  const auto count = static_cast<std::size_t>(p.m * p.n);
  Dense dense{std::vector<double>(count), {}, std::vector<double>(count), {}};
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      T sum =
          p.column_bias ? static_cast<T>(load_element(a.column_bias.data, p.dtype, j * a.column_bias.stride[0])) : 0;
      double terms = std::abs(double{sum});
      for (std::int64_t d = 0; d < p.k; ++d) {
        const T term = static_cast<T>(x[static_cast<std::size_t>(i * p.k + d)]) *
                       static_cast<T>(w[static_cast<std::size_t>(j * p.k + d)]);
        sum += term;
        terms += std::isfinite(term) ? std::abs(double{term}) : 0;
      }
      const auto at = static_cast<std::size_t>(i * p.n + j);
      dense.out[at] = double{sum};
      dense.top[at] = terms;
    }
  }
  return dense;
}

}  // namespace

Dense flat_gemm_oracle(const Problem& p, const Tensors& a) { return product<double>(p, a); }
Dense flat_gemm_base(const Problem& p, const Tensors& a) {
  Dense base = product<float>(p, a);
  with_float_type(p.out_dtype, [&](auto zero) {
    for (double& x : base.out) x = double{to_float(from_float<decltype(zero)>(static_cast<float>(x)))};
  });
  return base;
}

}  // namespace onepass::reference
