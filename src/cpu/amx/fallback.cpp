#include "cpu/amx/fallback.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/mask.hpp"
#include "core/numerics.hpp"
#include "core/philox.hpp"
#include "core/scalar.hpp"

namespace onepass::cpu::amx {
namespace {

// One row's scores in the order of docs/conventions.md; -inf: not seen.
struct Score {
  const Problem& p;
  const Arguments& a;
  const Sequence& seq;
  std::int64_t batch, head, row;
  BandMask band = band_mask(p, seq.seq_q, seq.seq_k);

  double operator()(std::int64_t key) const {
    if (!band.visible(row, key) ||
        (p.bool_mask && static_cast<const std::uint8_t*>(a.bool_mask.data)[spread_at(a.bool_mask, key)] == 0)) {
      return Arith<double>::neg_inf();
    }
    double s = 0;
    const std::int64_t q = row_offset(a.q, seq.batch, head, seq.q_begin + row);
    const std::int64_t k = row_offset(a.k, seq.batch, head / p.group(), seq.k_begin + key);
    for (std::int64_t d = 0; d < p.dim_qk; ++d) {
      s += double{load_element(a.q.data, a.q.dtype, q + d)} * double{load_element(a.k.data, a.k.dtype, k + d)};
    }
    s *= p.effective_scale();
    if (p.softcap > 0) s = p.softcap * std::tanh(s / p.softcap);
    if (p.bias) s += load_element(a.bias.data, a.bias.dtype, spread_at(a.bias, key));
    if (p.alibi) {
      const ConstTensor& t = a.alibi_slopes;
      const std::int64_t at = t.rank == 2 ? batch * t.stride[0] + head * t.stride[1] : head * t.stride[0];
      s -= static_cast<const float*>(t.data)[at] * static_cast<double>(std::abs(row + band.shift - key));
    }
    return s;
  }

 private:
  std::int64_t spread_at(const ConstTensor& t, std::int64_t key) const {
    const Dims s = broadcast_strides(t);
    return batch * s[0] + head * s[1] + row * s[2] + key * s[3];
  }
};

}  // namespace

void careful_row(const Problem& p, const Arguments& a, const Sequence& seq, std::int64_t batch, std::int64_t head,
                 std::int64_t row) {
  const Score score{p, a, seq, batch, head, row};
  const Dropout dropout = Dropout::of(p.dropout_p, p.seed);
  constexpr double kTiny = std::numeric_limits<double>::min();
  RowState<double> state;
  double o[kLargestDim] = {};
  for (std::int64_t key = 0; key < seq.seq_k; ++key) {
    const double s = score(key) * kLog2e;
    if (s == Arith<double>::neg_inf()) continue;  // its value never enters, be it NaN
    const Rescale<double> step = advance(state, s);
    // A visible weight is never 0, however small: times an infinite value it must not become NaN.
    double w = std::max(weight(s, step), kTiny);
    const double older = std::max(step.alpha, kTiny);
    absorb(state, w);
    if (dropout.active()) {
      w *= dropout.factor(static_cast<unsigned>(batch), static_cast<unsigned>(head), static_cast<unsigned>(row),
                          static_cast<unsigned>(key));
    }
    const std::int64_t v = row_offset(a.v, seq.batch, head / p.group(), seq.k_begin + key);
    for (std::int64_t d = 0; d < p.dim_v; ++d) o[d] = o[d] * older + w * load_element(a.v.data, a.v.dtype, v + d);
  }

  double older = 1.0;
  if (p.sinks) {
    const Merged<double> joined =
        join_sink(state, static_cast<const float*>(a.sinks.data)[head * a.sinks.stride[0]] * kLog2e);
    state = joined.state;
    older = joined.alpha_a;
  }
  const Final<double> end = finalize(state);
  const std::int64_t out = row_offset(a.out, seq.batch, head, seq.q_begin + row);
  for (std::int64_t d = 0; d < p.dim_v; ++d) {
    store_element(a.out.data, a.out.dtype, out + d, static_cast<float>(o[d] * older * end.inv_l));
  }
  if (p.want_lse) {
    static_cast<float*>(a.lse.data)[lse_offset(a.lse, seq.batch, head, seq.q_begin + row)] =
        static_cast<float>(end.lse);
  }
}

}  // namespace onepass::cpu::amx
