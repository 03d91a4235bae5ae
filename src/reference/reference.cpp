#include "reference/reference.hpp"

#include "core/numerics.hpp"
#include "reference/textbook.hpp"

namespace onepass::reference {
namespace {

struct State final : PlanState {
  using PlanState::PlanState;
  std::string describe() const override { return "float64, two passes, one task per (batch, head)"; }
  void run(const Tensors& a, void*, Executor& executor, void*) const override {
    const Problem& p = *problem;
    const Dense dense = oracle(p, a, executor);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const Sequence seq = sequence_of(p, a, b);
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        for (std::int64_t i = 0; i < seq.seq_q; ++i) {
          const double* row = dense.out.data() + dense_out_index(p, seq, h, i);
          const std::int64_t at = row_offset(a.out, seq.batch, h, seq.q_begin + i);
          for (std::int64_t d = 0; d < p.dim_v; ++d)
            store_element(a.out.data, a.out.dtype, at + d, static_cast<float>(row[d]));
          if (p.want_lse) {
            static_cast<float*>(a.lse.data)[lse_offset(a.lse, seq.batch, h, seq.q_begin + i)] =
                static_cast<float>(dense.lse[dense_lse_index(p, seq, h, i)]);
          }
        }
      }
    }
  }
};

}  // namespace

const Implementation& reference_implementation() {
  static const Implementation row{"reference", [](const Request& request) {
                                    if (request.problem->device.kind != DeviceKind::cpu)
                                      return Decision::no("it computes on the CPU only");
                                    return Decision{{}, std::make_shared<State>(request.problem)};
                                  }};
  return row;
}

}  // namespace onepass::reference
