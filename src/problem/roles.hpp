// The tensors of a call, a row each: what validation, the bindings, checks, mirrors, tools and benchmarks walk. A new
// tensor is a row in an operator's folder, its fields (CONTRIBUTING.md), and the code that computes with it.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "algebra/ceil_div.hpp"
#include "problem/append/roles.hpp"
#include "problem/attention/gradient_roles.hpp"
#include "problem/attention/roles.hpp"
#include "problem/gemm/roles.hpp"
#include "problem/operator.hpp"
#include "problem/quantize/roles.hpp"
#include "problem/role_row.hpp"
#include "problem/softmax/roles.hpp"
#include "problem/tensors.hpp"

namespace onepass {

// By role, from the operators' folders.
inline constexpr std::array<RoleRow, kRoles> kRoleTable = [] {
  std::array<RoleRow, kRoles> all{};
  const auto take = [&](const auto& rows) {
    for (const RoleRow& row : rows) {
      RoleRow& to = all[static_cast<std::size_t>(row.role)] = row;
      if (to.packed == Axes{}) to.packed = to.axes;
      if (to.gradient_of == Role{kRoles}) to.gradient_of = to.role;
      if (to.dtype_of == Role{kRoles}) to.dtype_of = to.role;
    }
  };
  take(kAttentionRoles);
  take(kGradientRoles);
  take(kSoftmaxRoles);
  take(kQuantizeRoles);
  take(kGemmRoles);
  take(kAppendRoles);
  return all;
}();
// Its dimensions may be 1, for repeated.
inline constexpr bool may_be_one(const RoleRow& row) {
  return row.fit == Fit::broadcast || row.fit == Fit::trailing_optional;
}
inline constexpr const RoleRow& row_of(Role role) { return kRoleTable[static_cast<std::size_t>(role)]; }
static_assert([] {
  for (std::size_t i = 0; i < kRoles; ++i)
    if (!kRoleTable[i].name || kRoleTable[i].role != Role{static_cast<std::uint8_t>(i)}) return false;
  return true;
}());

inline bool writes(const RoleRow& row, Op op) {
  return use_of(row, op) == Use::writes || use_of(row, op) == Use::may_write;
}
inline bool reads(const RoleRow& row, Op op) { return use_of(row, op) == Use::needs || use_of(row, op) == Use::takes; }
inline bool must_be_given(const RoleRow& row, Op op) {
  return use_of(row, op) == Use::needs || use_of(row, op) == Use::writes;
}
// It may be left out.
inline bool is_optional(const RoleRow& row, Op op) {
  return use_of(row, op) == Use::takes || use_of(row, op) == Use::may_write;
}

// f(row, tensor), the tensor a Tensor or a ConstTensor as its role is, given or not: for every role, and for those of
// an operator.
template <class AnyTensors, class F>
void for_each_role(AnyTensors& tensors, F&& f) {
  for (const RoleRow& row : kRoleTable) row.output ? f(row, tensors.*row.output) : f(row, tensors.*row.input);
}
template <class AnyTensors, class F>
void for_each_role(Op op, AnyTensors& tensors, F&& f) {
  for (const Role role : op->uses.roles()) {
    const RoleRow& row = row_of(role);
    row.output ? f(row, tensors.*row.output) : f(row, tensors.*row.input);
  }
}

inline ConstTensor tensor_of(const Tensors& tensors, const RoleRow& row) {
  return row.output ? ConstTensor(tensors.*row.output) : tensors.*row.input;
}

// Those of them that an operator has.
inline Tensors tensors_of(Op op, Tensors tensors) {
  for (const RoleRow& row : kRoleTable) {
    if (use_of(row, op) != Use::none) continue;
    row.output ? void(tensors.*row.output = {}) : void(tensors.*row.input = {});
  }
  return tensors;
}

int rank_of(const Axes& axes);
bool has_axis(Op op, Axis axis);  // of any of its tensors
// q, k, v and out have a word for all their strides.
inline bool strides_in_one(Op op) { return use_of(row_of(Role::q), op) == Use::needs; }
inline Form Forms::of(const RoleRow& row) const { return row.unit_last && row.axes[2] == Axis::seq_k ? keys : queries; }
inline Axes axes_of(const RoleRow& row, Form form) {
  if (form == Form::paged) return {Axis::pages, Axis::page_size, row.axes[1], row.axes[3]};
  return form == Form::packed || form == Form::matrix ? row.packed : row.axes;
}
Forms forms_of(const Problem& problem);
// "[batch, heads_q, seq_q, dim_qk]". slots: packed and paged tensors are so because of slot_mapping.
std::string form_text(const RoleRow& row, Form form, bool slots = false);
std::string_view what_of(Axis axis);  // "number of heads"
std::int64_t size_of(Axis axis, const Problem& problem);
bool uses(const Problem& problem, const RoleRow& row);     // whether its calls have this tensor
bool is_asked(const Gradients& gradients, Role gradient);  // false of what is none
// What a problem says of a descale, by its role.
// v_mean too, whose third dimension is columns.
std::optional<DescaleSpec> descale_of(const Problem& problem, Role role);
inline constexpr std::int64_t descale_blocks(std::int64_t rows) { return ceil_div(rows, kDescaleRows); }
// Tiles of a block mask along one side; a size below 1 is refused elsewhere.
inline constexpr std::int64_t mask_tiles(std::int64_t length, std::int64_t tile) {
  return ceil_div(length, tile < 1 ? 1 : tile);
}

// The sizes of a problem's tensor as its role has them; of a bias or mask, 1 in dimensions it does not span. rank 0:
// the problem has none.
struct RoleShape {
  int rank = 0;
  Dims size{1, 1, 1, 1};
  DType dtype = DType::f32;
};
RoleShape shape_of(const Problem& problem, const RoleRow& row);
// The tensor that the problem's layout describes, without memory; rank 0: the problem has none.
ConstTensor described(const Problem& problem, const RoleRow& row);
// Row-major strides, as Layout has them; of what may be left out, without it.
Dims row_major(const Problem& problem, const RoleRow& row);
// From the dimensions of a tensor to those of Layout.
Dims layout_of(const RoleRow& row, Form form, const ConstTensor& tensor);

}  // namespace onepass
