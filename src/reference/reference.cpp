#include "reference/reference.hpp"

#include "algebra/numerics.hpp"
#include "problem/roles.hpp"
#include "reference/gradients.hpp"

namespace onepass::reference {
namespace {

// Writes dense results of rows.
void write_out(const Problem& p, const Tensors& a, const std::vector<double>& from, const Tensor& out) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence_of(p, a, b);
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      for (std::int64_t i = 0; i < seq.seq_q; ++i) {
        const double* row = from.data() + dense_out_index(p, seq, h, i);
        const std::int64_t at = row_offset(out, seq.batch, h, seq.q_begin + i);
        for (std::int64_t d = 0; d < p.dim_v; ++d)
          store_element(out.data, out.dtype, at + d, static_cast<float>(row[d]));
      }
    }
  }
}
void write_numbers(const Problem& p, const Tensors& a, const std::vector<double>& from, const Tensor& t) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence_of(p, a, b);
    for (std::int64_t h = 0; h < p.heads_q; ++h)
      for (std::int64_t i = 0; i < seq.seq_q; ++i)
        static_cast<float*>(t.data)[lse_offset(t, seq.batch, h, seq.q_begin + i)] =
            static_cast<float>(from[static_cast<std::size_t>(dense_lse_index(p, seq, h, i))]);
  }
}

// A CPU computes products of tf32 in fp32, and this is its reference.
Problem in_fp32(Problem p) {
  p.precision = Precision::fp32;
  return p;
}

struct State final : PlanState {
  using PlanState::PlanState;
  std::string describe() const override { return "float64, two passes, one task per (batch, head)"; }
  void run(const Tensors& a, void*, Executor& executor, void*) const override {
    const Problem p = in_fp32(*problem);
    const Dense dense = oracle(p, a, executor);
    write_out(p, a, dense.out, a.out);
    if (p.want_lse) write_numbers(p, a, dense.lse, a.lse);
    if (p.want_row_max) write_numbers(p, a, dense.most, a.row_max);
    if (p.entropy) write_numbers(p, a, dense.entropy, a.entropy);
    if (!p.op->tangents) return;
    const DenseTangents tangents = oracle_tangents(p, a, executor);
    write_out(p, a, tangents.tout.value, a.tout);
    if (p.want_tlse) write_numbers(p, a, tangents.tlse.value, a.tlse);
  }
};

struct BackwardState final : PlanState {
  using PlanState::PlanState;
  std::string describe() const override { return "float64, whole rows of scores, one task per (batch, K/V head)"; }
  void run(const Tensors& a, void*, Executor& executor, void*) const override {
    const Problem p = in_fp32(*problem);
    const DenseGradients dense = p.op->tangents ? oracle_second(p, a, executor) : oracle_gradients(p, a, executor);
    for (const RoleRow& row : kRoleTable) {
      if (!writes(row, p.op) || !uses(p, row)) continue;
      const Tensor& t = a.*row.output;
      const std::vector<double>& from = dense.of(row.role).value;
      each_number(p, a, row, t, [&](std::int64_t offset, std::int64_t index) {
        store_element(t.data, t.dtype, offset, static_cast<float>(from[index]));
      });
    }
  }
};

template <class Of>
Decision plan(const Request& request) {
  if (request.problem->device.kind != DeviceKind::cpu) return Decision::no("requires tensors on the CPU");
  return Decision{{}, std::make_shared<Of>(request.problem)};
}

}  // namespace

std::span<const Implementation> reference_implementations() {
  static const Implementation rows[] = {{"reference", plan<State>},
                                        {"reference", plan<BackwardState>, kBackward},
                                        {"reference", plan<State>, kJvp},
                                        {"reference", plan<BackwardState>, kBackwardJvp}};
  return rows;
}

}  // namespace onepass::reference
