#include "problem/checks/role_checks.hpp"

#include <string>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "problem/callers_layout.hpp"
#include "problem/checks/tensor_checks.hpp"

namespace onepass {

void RoleChecks::meet(const RoleRow& row, const ConstTensor& t, int dimension, Axis axis) {
  const std::int64_t size = t.shape[dimension] - (axis == Axis::boundaries ? 1 : 0);
  const Axis counted = axis == Axis::boundaries ? Axis::batch : axis;
  Known& known = known_[static_cast<std::size_t>(counted)];
  want(axis != Axis::one || size == 1, ErrorCode::bad_shape, row.name, " must have shape [1] (got ",
       PassedShape{row.name, t}, ")");
  if (may_be_one(row) && t.shape[dimension] == 1) return;
  if (!known.by) known = {size, row.name};
  if (size == known.size) return;
  const std::int64_t expected = known.size + (axis == Axis::boundaries ? 1 : 0);
  if (may_be_one(row)) {
    throw Error(ErrorCode::bad_shape,
                text("dimension ", dimension, " of ", row.name, " must be ", expected, expected == 1 ? "" : " or 1",
                     " (got shape ", PassedShape{row.name, t}, ")"));
  }
  throw Error(ErrorCode::bad_shape, text("the ", what_of(axis), " of ", row.name, " must be ", expected, ", as in ",
                                         known.by, " (got shape ", PassedShape{row.name, t}, ")"));
}

void RoleChecks::check_dtype(const RoleRow& row, DType t) const {
  const DType base = tensor_of(all_, base_).dtype;
  const auto refuse = [&](const auto&... accepted) {
    throw Error(ErrorCode::bad_dtype, text(row.name, " must be ", accepted..., " (got ", name_of(t), ")"));
  };
  const auto as = [&](Role role) {
    const ConstTensor before = tensor_of(all_, row_of(role));
    if (before.given() && t != before.dtype) refuse(name_of(before.dtype), ", as ", row_of(role).name);
  };
  switch (row.types) {
    case Types::data:
      if (!is_data(t)) refuse("fp32, fp16 or bf16");
      if (row.dtype_of != row.role) as(row.dtype_of);
      return;
    case Types::query:
      if (row.role != base_.role) break;
      if (!is_data(t) && t != DType::f8e4m3) refuse("fp32, fp16, bf16 or fp8_e4m3");
      return;
    case Types::key_value:
      if (row.dtype_of != row.role) as(row.dtype_of);
      if (!is_key_dtype(t, base)) refuse(accepted_keys(base, base_.name));
      return;
    case Types::result:
      if (!is_data(t)) refuse("fp32, fp16 or bf16");
      if (t != base && t != DType::f32 && base != DType::f8e4m3)
        refuse(name_of(base), ", as ", base_.name, or_fp32(base));
      return;
    case Types::as_q: break;
    case Types::as_q_or_f32:
      if (!is_data(t)) refuse("fp32, fp16 or bf16");
      if (t != base && t != DType::f32) refuse(name_of(base), ", as ", base_.name, or_fp32(base));
      return;
    case Types::as_out: return as(Role::out);
    case Types::gradient:
      if (t != base && t != DType::f32) refuse(name_of(base), ", as ", base_.name, or_fp32(base));
      for (const Role other : {Role::dq, Role::dk, Role::tdq, Role::tdk})
        if (other < row.role) as(other);
      return;
    case Types::table:
      if (t != base && t != DType::f32)
        refuse(base == DType::f32 ? "" : "fp32 or ", name_of(base), ", as ", base_.name);
      if (row.dtype_of != row.role) as(row.dtype_of);
      return;
    case Types::f32:
      if (t != DType::f32) refuse("fp32");
      return;
    case Types::boolean:
      if (t != DType::boolean) refuse("bool");
      return;
    case Types::i32:
      if (t != DType::i32) refuse("int32");
      return;
    case Types::i64:
      if (t != DType::i64) refuse("int64");
      return;
    case Types::index:
      if (t != DType::i32 && t != DType::i64) refuse("int32 or int64");
      return;
  }
  if (!is_data(t)) refuse("fp32, fp16 or bf16");
  if (t != base) refuse(name_of(base), ", as ", base_.name);
}

// A gradient or a tangent has the shape of what it belongs to.
void RoleChecks::check_gradient(const RoleRow& row, const ConstTensor& t) const {
  const RoleRow& base = row_of(row.gradient_of);
  const ConstTensor of = tensor_of(all_, base);
  if (!of.given()) throw Error(ErrorCode::bad_value, text(row.name, " requires ", base.name));
  if (row.fit != Fit::exact && (t.rank != of.rank || t.shape != of.shape))
    throw Error(ErrorCode::bad_shape, text(row.name, " must have shape ", PassedShape{base.name, of}, ", as ",
                                           base.name, " (got ", PassedShape{row.name, t}, ")"));
}

void RoleChecks::check(const RoleRow& row, const ConstTensor& t) {
  want(t.given(), ErrorCode::bad_shape, row.name, " must be given");
  check_dtype(row, t.dtype);
  if (row.gradient_of != row.role && row.forward == Use::none) check_gradient(row, t);
  const Form form = forms_.of(row);
  const Axes axes = axes_of(row, form);
  const int rank = rank_of(axes), missing = row.fit == Fit::leading_optional && t.rank == rank - 1 ? 1 : 0;
  const bool shorter = row.fit == Fit::trailing_optional && t.rank >= 1 && t.rank < rank;
  if (t.rank + missing != rank && !shorter)
    throw Error(ErrorCode::bad_shape,
                text(row.name, " must have shape ", form_text(row, form, all_.slot_mapping.given()), " (got ",
                     PassedShape{row.name, t}, ")"));
  for (int i = 0; i < t.rank; ++i) {
    const Axis axis = axes[i + missing];
    if (axis == Axis::boundaries && t.shape[i] < 1)
      throw Error(ErrorCode::bad_shape, text(row.name, " must have batch + 1 entries (got none)"));
    meet(row, t, i, axis);
  }
  if (row.unit_last && t.shape[t.rank - 1] > 1 && t.stride[t.rank - 1] != 1) {
    throw Error(ErrorCode::bad_stride,
                text("the last dimension of ", row.name, " must have stride 1 (got ", t.stride[t.rank - 1], ")"));
  }
}

}  // namespace onepass
