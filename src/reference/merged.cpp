#include "reference/merged.hpp"

#include <algorithm>
#include <cmath>

namespace onepass::reference {
namespace {

template <class T>
Dense merged(const Problem& p, const Tensors& a) {
  const auto rows = static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q);
  Dense dense{std::vector<double>(rows * static_cast<std::size_t>(p.dim_v)), std::vector<double>(rows),
              std::vector<double>(rows), std::vector<double>(rows * static_cast<std::size_t>(p.dim_v))};
  std::vector<T> weight(a.outs.size()), sum(static_cast<std::size_t>(p.dim_v));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence_of(p, a, b);
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      for (std::int64_t i = 0; i < p.seq_q; ++i) {
        const auto lse_of = [&](std::size_t part) {
          return static_cast<T>(static_cast<const float*>(a.lses[part].data)[lse_offset(a.lses[part], b, h, i)]);
        };
        T most = -std::numeric_limits<T>::infinity(), all = 0, top = 0;
        for (std::size_t part = 0; part < weight.size(); ++part) most = std::max(most, lse_of(part));
        for (std::size_t part = 0; part < weight.size(); ++part) {
          weight[part] = std::isinf(lse_of(part)) && lse_of(part) < 0 ? 0 : std::exp(lse_of(part) - most);
          all += weight[part];
        }
        std::fill(sum.begin(), sum.end(), T{0});
        for (std::size_t part = 0; part < weight.size(); ++part) {
          if (std::isinf(lse_of(part)) && lse_of(part) < 0) continue;  // nothing, whatever its O holds
          top = std::max(top, weight[part] / all);
          const std::int64_t at = row_offset(a.outs[part], b, h, i);
          double* const square = dense.square.data() + dense_out_index(p, seq, h, i);
          for (std::int64_t d = 0; d < p.dim_v; ++d) {
            const T value = static_cast<T>(load_element(a.outs[part].data, a.outs[part].dtype, at + d));
            sum[d] += weight[part] / all * value;
            square[d] += double{weight[part] / all} * double{value} * double{value};
          }
        }
        const std::int64_t row = dense_lse_index(p, seq, h, i);
        dense.lse[row] = all == 0 ? -std::numeric_limits<double>::infinity() : double{most + std::log(all)};
        dense.top[row] = double{top};
        std::copy(sum.begin(), sum.end(), dense.out.begin() + dense_out_index(p, seq, h, i));
      }
    }
  }
  return dense;
}

}  // namespace

Dense merged_oracle(const Problem& p, const Tensors& a) { return merged<double>(p, a); }
Dense merged_base(const Problem& p, const Tensors& a) { return merged<float>(p, a); }

}  // namespace onepass::reference
