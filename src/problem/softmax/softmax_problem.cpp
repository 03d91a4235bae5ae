// The problems of a softmax over rows and of its backward.
#include <algorithm>

#include "base/text.hpp"
#include "problem/checks/problem_checks.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/operator.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

// The tensor whose shape the others have.
void check_dtype(const RoleRow& row, const ConstTensor& t, const Tensors& all, Op op) {
  const auto refuse = [&](const auto&... accepted) {
    throw Error(ErrorCode::bad_dtype, text(row.name, " must be ", accepted..., " (got ", name_of(t.dtype), ")"));
  };
  const DType y = all.y.dtype;
  switch (row.role) {
    case Role::bool_mask:
      if (t.dtype != DType::boolean) refuse("bool");
      return;
    case Role::lse:
    case Role::row_lse:
      if (t.dtype != DType::f32) refuse("fp32");
      return;
    default:
      if (!is_data(t.dtype)) refuse("fp32, fp16 or bf16");
  }
  if (row.role == Role::y && !is_backward(op) && y != all.x.dtype && y != DType::f32)
    refuse(name_of(all.x.dtype), ", as x", or_fp32(all.x.dtype));
  if (row.role == Role::dy && t.dtype != y) refuse(name_of(y), ", as y");
  if (row.role == Role::dx && y != t.dtype && y != DType::f32) refuse(name_of(y), ", as y");
}

// `t` has the shape of the first tensor; [..] without its last dimension; or a mask's, broadcast to it.
void check_shape(const RoleRow& row, const ConstTensor& t, const ConstTensor& first, const char* first_name) {
  const auto refuse = [&](const auto&... expected) {
    throw Error(ErrorCode::bad_shape, text(row.name, " must have ", expected..., " (got ", shape_text(t), ")"));
  };
  if (row.fit == Fit::broadcast) {
    bool fits = t.rank <= first.rank;
    for (int i = 0; fits && i < t.rank; ++i) {
      const std::int64_t full = first.shape[i + first.rank - t.rank];
      fits = t.shape[i] == full || t.shape[i] == 1;
    }
    if (!fits) refuse("sizes of 1 or of ", first_name, ", ", shape_text(first));
  } else if (row.axes[3] == Axis::none) {
    const bool single = first.rank == 1 && t.rank == 1 && t.shape[0] == 1;
    if (!single &&
        (t.rank != first.rank - 1 || !std::equal(t.shape.begin(), t.shape.begin() + t.rank, first.shape.begin())))
      refuse("the shape of ", first_name, ", ", shape_text(first), ", without the last dimension",
             first.rank == 1 ? ", or [1]" : "");
  } else if (t.rank != first.rank || t.shape != first.shape) {
    refuse("shape ", shape_text(first), ", as ", first_name);
  }
}

void check(const Tensors& t, Op op) {
  const RoleRow& lead = row_of(op->base);
  const ConstTensor first = tensor_of(t, lead);
  for_each_role(op, t, [&](const RoleRow& row, const auto& tensor) {
    if (!must_be_given(row, op) && !tensor.given()) return;
    check_dtype(row, tensor, t, op);
    check_shape(row, tensor, first, lead.name);
  });
  if (!is_backward(op)) {
    want(t.y.given() || t.lse.given(), ErrorCode::bad_value, "y or lse must be given");
    want(!t.row_lse.given() || (t.y.given() && !t.lse.given()), ErrorCode::bad_value,
         "row_lse requires y and does not support lse");
  }
}

// Tensors of one shape [.., n], of rank 1 to 4, and LSEs [..], [1] of a single row; what is missing in front has size
// 1.
Problem softmax_problem_of(Op op, const Tensors& t, const CallOptions& a, Mods*) {
  Problem p;
  p.op = op;
  check(t, p.op);
  ConstTensor first = tensor_of(t, row_of(op->base));
  widen(first, kMaxRank);
  p.batch = first.shape[0];
  p.heads_q = first.shape[1];
  p.seq_q = first.shape[2];
  p.seq_k = first.shape[3];
  p.device = first.device;
  p.dtype = !is_backward(p.op) ? t.x.dtype : t.dx.dtype;
  p.out_dtype = t.y.given() ? t.y.dtype : p.dtype;
  p.scale = a.scale;
  p.log = a.log;
  p.want_lse = t.lse.given();
  p.lse_only = !is_backward(p.op) && !t.y.given();
  p.row_lse = t.row_lse.given();
  if (t.bool_mask.given()) {
    ConstTensor mask = t.bool_mask;
    widen(mask, kMaxRank);
    const auto spans = [&](int i) { return first.shape[i] != 1 && mask.shape[i] == first.shape[i]; };
    p.bool_mask = BroadcastDims{spans(0), spans(1), spans(2), spans(3)};
  }
  take_layout(p, t);
  validate(p);
  return p;
}

Mods validate_softmax(const Problem& p) {
  for (const auto& [name, t] : {std::pair{"x", p.dtype}, {"y", p.out_dtype}}) validate_data(name, t);
  want(p.out_dtype == p.dtype || p.out_dtype == DType::f32, ErrorCode::bad_dtype, "y must be ", name_of(p.dtype),
       ", as x", or_fp32(p.dtype), " (got ", name_of(p.out_dtype), ")");
  validate_device(p);
  const bool forward = !is_backward(p.op);
  want(forward || (!p.want_lse && !p.lse_only && !p.row_lse && !p.bool_mask), ErrorCode::bad_value,
       "softmax_backward does not support lse, row_lse or bool_mask");
  want(!p.lse_only || p.want_lse, ErrorCode::bad_value, "lse_only requires want_lse");
  want(!p.row_lse || (!p.lse_only && !p.want_lse), ErrorCode::bad_value, "row_lse requires y and does not support lse");
  validate_scale(p);
  validate_size("x", {p.batch, p.heads_q, p.seq_q, p.seq_k});
  validate_strides(p);
  validate_alignments(p);
  return {};
}

constexpr std::string_view kWords[] = {"operator", "b", "h", "s", "dtype", "out", "device", "align", "scale", "log"};

}  // namespace

constinit const Operator kSoftmax{.word = "softmax",
                                  .call = "softmax",
                                  .base = Role::x,
                                  .uses = uses_of({{Role::x, Use::needs},
                                                   {Role::bool_mask, Use::takes},
                                                   {Role::row_lse, Use::takes},
                                                   {Role::y, Use::may_write},
                                                   {Role::lse, Use::may_write}}),
                                  .words = kWords,
                                  .unit_scale = true,
                                  .any_rank = true,
                                  .described = true,
                                  .problem_of = softmax_problem_of,
                                  .validate = validate_softmax,
                                  .complete = [](Problem& p, Said) { complete_rows(p); }};
constinit const Operator kSoftmaxBackward{
    .word = "softmax_bwd",
    .call = "softmax_backward",
    .base = Role::y,
    .uses = uses_of({{Role::y, Use::needs}, {Role::dy, Use::needs}, {Role::dx, Use::writes}}),
    .words = kWords,
    .unit_scale = true,
    .any_rank = true,
    .backward = true,
    .described = true,
    .problem_of = softmax_problem_of,
    .validate = validate_softmax,
    .complete = [](Problem& p, Said) { complete_rows(p); }};

}  // namespace onepass
