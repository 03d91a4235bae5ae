// The rule of docs/reference/conventions.md for derivatives along tangents.
#include <cmath>

#include "base/text.hpp"
#include "check/verdict/sums.hpp"

namespace onepass::check {

Verdict judge_tangents(const Inputs& in, const reference::DenseTangents& oracle, const reference::DenseTangents& base,
                       DeviceKind computed_on, const reference::DenseTangents* exact) {
  if (!exact) exact = &oracle;
  const Problem& p = in.problem;
  const double products = 2 * std::sqrt(static_cast<double>(p.dim_qk)) * rounding_unit(DType::f32),
               unsure = gradient_error(p, score_terms(in), computed_on) + products;
  const auto each_row = [&](auto f) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const Sequence seq = sequence_of(p, in.tensors, b);
      for (std::int64_t h = 0; h < p.heads_q; ++h)
        for (std::int64_t i = 0; i < seq.seq_q; ++i) f(seq, h, i);
    }
  };
  std::string violation;
  const Tensor &tout = in.tensors.tout, &tlse = in.tensors.tlse;
  Verdict v = judge_sums(
      in, row_of(Role::tout), oracle.tout, base.tout, exact->tout, unsure,
      [&](const Look& look) {
        each_row([&](const Sequence& seq, std::int64_t h, std::int64_t i) {
          const std::int64_t from = row_offset(tout, seq.batch, h, seq.q_begin + i),
                             at = reference::dense_out_index(p, seq, h, i);
          for (std::int64_t d = 0; d < p.dim_v; ++d) look(from + d, at + d);
        });
      },
      violation);
  std::string figures = text("max error of tout ", v.max_error, " of ", v.max_allowed);
  if (p.want_tlse) {
    const Verdict of_lse = judge_sums(
        in, row_of(Role::tlse), oracle.tlse, base.tlse, exact->tlse, unsure,
        [&](const Look& look) {
          each_row([&](const Sequence& seq, std::int64_t h, std::int64_t i) {
            look(lse_offset(tlse, seq.batch, h, seq.q_begin + i), reference::dense_lse_index(p, seq, h, i));
          });
        },
        violation);
    figures += text("; tlse ", of_lse.max_error, " of ", of_lse.max_allowed);
  }
  if (violation.empty()) violation = in.touched();
  v.right = violation.empty();
  v.sentence = v.right ? figures : violation;
  return v;
}

}  // namespace onepass::check
