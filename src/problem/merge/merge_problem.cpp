// The problem of a merge: partial results (O, LSE) over disjoint key sets and the tensors that they are joined into.
#include <algorithm>
#include <tuple>

#include "base/text.hpp"
#include "problem/checks/problem_checks.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/operator.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

// [.., rows, dim] as `like`
void want_values(const std::string& name, const ConstTensor& t, const ConstTensor& like) {
  want(t.rank >= 2, ErrorCode::bad_shape, name, " must have shape [.., rows, dim] (got ", ShownShape{t}, ")");
  want(t.rank == like.rank && t.shape == like.shape, ErrorCode::bad_shape, name, " must have shape ", ShownShape{like},
       ", as out (got ", ShownShape{t}, ")");
  want(is_data(t.dtype), ErrorCode::bad_dtype, name, " must be fp32, fp16 or bf16 (got ", name_of(t.dtype), ")");
  want(t.shape[t.rank - 1] <= 1 || t.stride[t.rank - 1] == 1, ErrorCode::bad_stride, "the last dimension of ", name,
       " must have stride 1 (got ", t.stride[t.rank - 1], ")");
}

// [.., rows]: `out` without its last dimension
void want_lse(const std::string& name, const ConstTensor& t, const Tensor& out) {
  want(t.dtype == DType::f32, ErrorCode::bad_dtype, name, " must be fp32 (got ", name_of(t.dtype), ")");
  want(t.rank == out.rank - 1 && std::equal(t.shape.begin(), t.shape.begin() + t.rank, out.shape.begin()),
       ErrorCode::bad_shape, name, " must have the shape of out, ", ShownShape{out},
       ", without the last dimension (got ", ShownShape{t}, ")");
}

void check(const Tensors& t) {
  const auto& [outs, lses, out, lse] = std::tie(t.outs, t.lses, t.out, t.lse);
  want(!outs.empty(), ErrorCode::bad_value, "outs must hold at least one partial result (got none)");
  want(outs.size() == lses.size(), ErrorCode::bad_shape, "lses must hold one LSE for each of the ", outs.size(),
       " outs (got ", lses.size(), ")");
  want_values("out", out, out);
  for (std::size_t i = 0; i < outs.size(); ++i) {
    want_values(text("outs[", i, "]"), outs[i], out);
    want_lse(text("lses[", i, "]"), lses[i], out);
  }
  if (lse.given()) want_lse("lse", lse, out);
}

Problem merge_problem_of(Op op, const Tensors& t, const CallOptions&, Mods*) {
  check(t);
  Problem p;
  p.op = op;
  p.partials = static_cast<std::int64_t>(t.outs.size());
  p.device = t.out.device;
  p.dtype = t.outs[0].dtype;
  p.out_dtype = t.out.dtype;
  p.want_lse = t.lse.given();
  // [.., rows, dim]: what is missing in front has size 1.
  Tensor out = t.out, lse = t.lse;
  widen(out, 4);
  p.batch = out.shape[0];
  p.heads_q = out.shape[1];
  p.seq_q = out.shape[2];
  p.dim_v = out.shape[3];
  p.layout.out = layout_of(row_of(Role::out), Form::batched, out);
  if (lse.given()) {
    widen(lse, 3);
    p.layout.lse = layout_of(row_of(Role::lse), Form::batched, lse);
  }
  validate(p);
  return p;
}

Mods validate_merge(const Problem& p) {
  want(p.partials >= 1, ErrorCode::bad_value, "the number of partial results must be 1 or more (got ", p.partials, ")");
  want(p.dim_v >= 0, ErrorCode::bad_shape, "dim_v must be 0 or more (got ", p.dim_v, ")");
  for (const auto& [name, t] : {std::pair{"outs", p.dtype}, {"out", p.out_dtype}}) {
    validate_data(name, t);
  }
  validate_device(p);
  validate_size("out", {p.batch, p.heads_q, p.seq_q, p.dim_v});
  validate_strides(p);
  return {};
}

// Only out's sizes count.
void complete_merge(Problem& p, Said) { p.heads_kv = 1, p.seq_k = 0, p.dim_qk = Problem{}.dim_qk; }

constexpr std::string_view kWords[] = {"operator", "n",   "b",      "h",      "s",    "d",
                                       "dtype",    "out", "layout", "device", "align"};

}  // namespace

constinit const Operator kMerge{.word = "merge",
                                .call = "merge",
                                .base = Role::out,
                                .uses = uses_of({{Role::out, Use::writes}, {Role::lse, Use::may_write}}),
                                .words = kWords,
                                .parts = true,
                                .any_rank = true,
                                .problem_of = merge_problem_of,
                                .validate = validate_merge,
                                .complete = complete_merge};

}  // namespace onepass
