#include "reference/reference.hpp"

#include "core/numerics.hpp"
#include "reference/textbook.hpp"

namespace onepass::reference {
namespace {

void run(const Problem& p, const Arguments& a, void*, Executor& executor, void*) {
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

}  // namespace

const Implementation& reference_implementation() {
  static const Implementation row{
      "reference",
      [](const Problem& p) {
        return p.device.kind == DeviceKind::cpu ? std::string() : std::string("it computes on the CPU only");
      },
      [](const Problem&) { return std::string("float64, two passes, one task per (batch, head)"); },
      [](const Problem&, int) { return std::size_t{0}; }, run};
  return row;
}

}  // namespace onepass::reference
