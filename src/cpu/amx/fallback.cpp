#include "cpu/amx/fallback.hpp"

#include <algorithm>

#include "algebra/entropy.hpp"
#include "algebra/nonfinite.hpp"
#include "algebra/philox.hpp"
#include "cpu/common/combine.hpp"
#include "expression/scalar.hpp"
#include "problem/attention/key_value_view.hpp"
#include "problem/attention/score.hpp"

namespace onepass::cpu::amx {

void fallback_row(const Problem& p, const Tensors& a, const ScoreParams& params, const Sequence& seq, std::int64_t head,
                  std::int64_t row, const ExprMemory<float>& mods) {
  const std::int64_t batch = seq.batch;
  const HeadScores scores{params, batch, head, band_mask(p, seq.seq_q, seq.seq_k)};
  const KeyValueView k(a.k, seq, a.k_descale), v(a.v, seq);
  const std::int64_t q = row_offset(a.q, seq.batch, head, seq.q_begin + row), kv_head = head / p.group();
  const auto dot = [&](std::int64_t key) {
    double sum = 0;
    for (std::int64_t d = 0; d < p.dim_qk; ++d)
      sum += double{load_element(a.q.data, a.q.dtype, q + d)} * double{k.element(kv_head, key, d)};
    return sum * double{Descale(a.q_descale, seq.batch).at(head, row)};
  };
  const Dropout dropout = dropout_of(p, a);
  RowState<double> state;
  double terms = 0;  // of the entropy
  double o[kLargestDim] = {};
  const Range keys = scores.band.keys_of(row);
  float seen[kExprBlock];  // by the mask_mod: of kExprBlock keys at a time
  const auto look_at = [&](std::int64_t key) {
    const auto of_head = static_cast<std::int32_t>(head), of_row = static_cast<std::int32_t>(row);
    const std::int64_t count = std::min<std::int64_t>(kExprBlock, keys.hi - key);
    std::fill_n(seen, count, 1.0f);
    ExprRun<float, ScalarFunctions>(params.mods->mask, a.mod_buffers, mods)
        .hide({seen, 1, 1, count, static_cast<std::int32_t>(batch), key, &of_head, &of_row}, 0.0f);
  };
  for (std::int64_t key = keys.lo; key < keys.hi; ++key) {
    if (params.mods) {
      const std::int64_t at = (key - keys.lo) % kExprBlock;
      if (at == 0) look_at(key);
      if (seen[at] == 0) continue;
    }
    const double s = scores.score(dot(key), row, key).value * kLog2e;
    if (s == Arith<double>::neg_inf()) continue;  // its value never enters, be it NaN
    const double before = state.m;
    const Rescale<double> step = advance(state, s);
    const double w = weight(s, step);
    terms = moved_terms(terms, state.l, before, step) + w * exponent(log2_weight(s, step));
    absorb(state, w);
    const double kept = dropout.active() ? dropout.factor(static_cast<unsigned>(batch), static_cast<unsigned>(head),
                                                          static_cast<unsigned>(row), static_cast<unsigned>(key))
                                         : 1.0;
    for (std::int64_t d = 0; d < p.dim_v; ++d) {
      const double x = v.element(kv_head, key, d);
      o[d] = o[d] * visible_weight(step.alpha, o[d]) + visible_weight(w, x) * kept * x;
    }
  }

  if (p.want_row_max)
    static_cast<float*>(a.row_max.data)[lse_offset(a.row_max, seq.batch, head, seq.q_begin + row)] =
        static_cast<float>(largest_score(state) * kLn2);
  double older = 1.0;
  const float sink = p.sinks ? static_cast<const float*>(a.sinks.data)[head * a.sinks.stride[0]] : 0.0f;
  if (p.entropy)
    static_cast<float*>(a.entropy.data)[lse_offset(a.entropy, seq.batch, head, seq.q_begin + row)] =
        finished_entropy(p, {static_cast<float>(state.m * kLn2), static_cast<float>(state.l)},
                         static_cast<float>(entropy(state.l, terms)), sink);
  if (p.sinks) {
    const Merged<double> joined = join_sink(state, sink * kLog2e);
    state = joined.state;
    older = joined.alpha_a;
  }
  const Final<double> end = finalize(state);
  const std::int64_t out = row_offset(a.out, seq.batch, head, seq.q_begin + row);
  for (std::int64_t d = 0; d < p.dim_v; ++d) {
    store_element(a.out.data, a.out.dtype, out + d, static_cast<float>(o[d] * visible_weight(older, o[d]) * end.inv_l));
  }
  if (p.want_lse) {
    static_cast<float*>(a.lse.data)[lse_offset(a.lse, seq.batch, head, seq.q_begin + row)] =
        static_cast<float>(end.lse);
  }
}

}  // namespace onepass::cpu::amx
