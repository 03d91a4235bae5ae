// The checks of a run's tensors: they are the plan's, and outputs have memory of their own.
#include <array>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>

#include "base/overlap.hpp"
#include "base/shown.hpp"
#include "base/text.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/attention/cache.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/grammar/mismatch.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

// Put together only in a sentence.
struct BufferName {
  const std::string& name;
  friend std::ostream& operator<<(std::ostream& out, const BufferName& b) {
    return out << "mod buffer " << shown(b.name);
  }
};

bool same_view(const ConstTensor& a, const ConstTensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i)
    if (a.shape[i] != b.shape[i] || (a.shape[i] > 1 && a.stride[i] != b.stride[i])) return false;
  return true;
}

}  // namespace

void check_planned(const Problem& p, const Tensors& t) {
  const Operator& op = *p.op.row;
  if (op.any_rank) {
    Problem other = problem_of(p.op, t, attention_of(p));
    for (std::size_t i = 0; i < kRoles; ++i)
      if (other.alignment[i] >= p.alignment[i]) other.alignment[i] = p.alignment[i];
    if (other == p) return;
    throw Error(ErrorCode::bad_shape, mismatch(p, std::move(other)));
  }
  const Forms forms = forms_of(p);
  const auto fits = [&](const RoleRow& row, const ConstTensor& tensor) {
    const RoleShape shape = shape_of(p, row);
    const int missing = row.fit == Fit::leading_optional ? shape.rank - tensor.rank : 0;
    bool same = tensor.dtype == shape.dtype && tensor.device == p.device && tensor.rank + missing == shape.rank &&
                (missing == 0 || missing == 1);
    if (row.fit == Fit::trailing_optional) {  // dimensions left out have size 1, as those that are not spanned
      same = tensor.dtype == shape.dtype && tensor.device == p.device && tensor.rank <= shape.rank;
      for (int i = tensor.rank; same && i < shape.rank; ++i) same = shape.size[i] == 1;
    }
    for (int i = 0; same && i < tensor.rank; ++i) same = tensor.shape[i] == shape.size[i + missing];
    return same && (tensor.data || tensor.elements() == 0) &&
           layout_of(row, forms.of(row), tensor) == p.layout.*row.layout &&
           (!row.unit_last || tensor.shape[tensor.rank - 1] <= 1 || tensor.stride[tensor.rank - 1] == 1) &&
           alignment_of(tensor) >= p.alignment[static_cast<std::size_t>(row.role)];
  };
  bool same = t.mod_buffers.size() == p.mod_buffers.size() && t.outs.empty() && t.lses.empty();
  for (const RoleRow& row : kRoleTable) {  // most are not given
    const bool given = row.output ? (t.*row.output).given() : (t.*row.input).given();
    same = same && given == uses(p, row) && (!given || fits(row, tensor_of(t, row)));
  }
  for (std::size_t i = 0; same && i < p.mod_buffers.size(); ++i) {
    const auto& [name, tensor] = t.mod_buffers[i];
    same = p.mod_buffers[i] == ModBuffer{name, tensor.dtype, tensor.rank, tensor.shape} && tensor.device == p.device &&
           (tensor.data || tensor.elements() == 0);
  }
  same = same && (!p.v_in_k || t.v.data == t.k.data);
  if (same) return op.check_contents ? op.check_contents(p, t) : void();
  // The difference, in words: first, if it is a call at all.
  const CallOptions options = attention_of(p);
  throw Error(ErrorCode::bad_shape,
              mismatch(p, is_attention(p.op) ? problem_of(t, options) : problem_of(p.op, t, options)));
}

void check_apart(Op op, const Tensors& t) {
  struct Place {
    const RoleRow* row;
    const Tensor* tensor;
    Extent extent;
    bool meets(const ConstTensor& other, const Extent& at) const { return share_memory(*tensor, extent, other, at); }
  };
  const auto refuse = [](std::string_view output, const auto&... other) {
    throw Error(ErrorCode::bad_value, text(output, " must not share memory with ", other...));
  };
  std::array<Place, kRoles> outputs;  // uninitialised behind `count`
  std::size_t count = 0;
  for (const Role role : op->uses.roles()) {
    const RoleRow& row = row_of(role);
    if (!writes(row, op) || !(t.*row.output).given()) continue;
    const Place place{&row, &(t.*row.output), extent_of(t.*row.output)};
    for (std::size_t i = 0; i < count; ++i)
      if (outputs[i].meets(*place.tensor, place.extent)) refuse(row.name, outputs[i].row->name);
    outputs[count++] = place;
  }
  // The parts of the name are put together only if it is needed.
  const auto want_all_apart = [&](const ConstTensor& tensor, Role role, const auto&... name) {
    const Extent extent = extent_of(tensor);
    for (std::size_t i = 0; i < count; ++i) {
      const RoleRow& output = *outputs[i].row;
      if ((output.in_place_of == role || output.role == role) && same_view(*outputs[i].tensor, tensor)) continue;
      if (outputs[i].meets(tensor, extent)) refuse(outputs[i].row->name, name...);
    }
  };
  constexpr Role kNoRole{kRoles + 1};
  for_each_role(op, t, [&](const RoleRow& row, const ConstTensor& tensor) {
    if (!writes(row, op) && tensor.given()) want_all_apart(tensor, row.role, row.name);
  });
  for (const auto& [name, tensor] : t.mod_buffers) want_all_apart(tensor, kNoRole, BufferName{name});
  // A merge may write into one of its parts.
  for (const auto& [name, parts, role] : {std::tuple{"outs", &t.outs, Role::out}, {"lses", &t.lses, Role::lse}})
    for (std::size_t i = 0; i < parts->size(); ++i) want_all_apart((*parts)[i], role, name, "[", i, "]");
}

}  // namespace onepass
