#include "problem/checks/tensor_checks.hpp"
#include "base/text.hpp"
#include "problem/callers_layout.hpp"
#include "problem/roles.hpp"

#include <bit>
#include <cstdint>

#include "onepass/error.hpp"

namespace onepass {

// From the smallest stride up, each dimension must step over all that the smaller ones span. That holds for every view
// that slicing, permuting and reversing make of a tensor that does not overlap itself.
void check_output(std::string_view name, const ConstTensor& t) {
  if (t.elements() == 0) return;
  const auto magnitude = [&](int i) {
    const auto s = static_cast<std::uint64_t>(t.stride[i]);
    return t.stride[i] < 0 ? 0 - s : s;
  };
  std::uint64_t span = 1;  // elements from the first to the last, over the dimensions so far
  for (unsigned left = (1u << t.rank) - 1; left != 0;) {
    int i = std::countr_zero(left);  // the smallest stride that is left
    for (int d = i + 1; d < t.rank; ++d) {
      if ((left >> d & 1u) && magnitude(d) < magnitude(i)) i = d;
    }
    left &= ~(1u << i);
    if (t.shape[i] <= 1) continue;
    if (magnitude(i) < span) {
      throw Error(ErrorCode::bad_stride, text("an output must not overlap itself (", name, " has stride ", t.stride[i],
                                              " in dimension ", i, " of ", shape_text(t), ")"));
    }
    std::uint64_t more = 0;
    if (__builtin_mul_overflow(magnitude(i), static_cast<std::uint64_t>(t.shape[i] - 1), &more) ||
        __builtin_add_overflow(span, more, &span)) {
      span = UINT64_MAX;
    }
  }
}

void check_tensor(std::string_view name, const ConstTensor& t) {
  if (!t.given()) throw Error(ErrorCode::bad_shape, text(name, " must be given"));
  if (t.rank < 0 || t.rank > kMaxRank)
    throw Error(ErrorCode::bad_shape, text(name, " must have 1 to ", kMaxRank, " dimensions (got ", t.rank, ")"));
  if (t.dtype > DType::i64)
    throw Error(ErrorCode::bad_dtype,
                text("the dtype of ", name, " must be a value of DType (got ", static_cast<int>(t.dtype), ")"));
  if (t.device.kind > DeviceKind::cuda) {
    throw Error(ErrorCode::bad_device, text("the device kind of ", name, " must be a value of DeviceKind (got ",
                                            static_cast<int>(t.device.kind), ")"));
  }
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] < 0)
      throw Error(ErrorCode::bad_shape, text("the sizes of ", name, " must be 0 or more (got ", shape_text(t), ")"));
  }
  if (t.data == nullptr && t.elements() > 0)
    throw Error(ErrorCode::bad_value, text(name, " must have data for shape ", shape_text(t), " (got a null pointer)"));
  if (t.device.kind != DeviceKind::cuda || t.elements() == 0) return;
  // A GPU faults at an element that lies across its boundary, which ends the process's use of the device.
  const auto bytes = static_cast<std::uintptr_t>(size_of(t.dtype));
  const auto beyond = reinterpret_cast<std::uintptr_t>(t.data) % bytes;
  if (beyond != 0) {
    throw Error(ErrorCode::bad_value, text("the data of ", name, " must be aligned to its elements of ", bytes,
                                           " bytes (got an address ", beyond, " beyond)"));
  }
}

void check_roles(Op op, const Tensors& t) {
  const auto refuse = [&](std::string_view name, const Operator* other) {
    throw Error(ErrorCode::bad_value, text(op->call, " does not accept ", name, "; ", other->call, " does"));
  };
  const bool parts = op->parts, mods = is_said(op->words, "buffer");
  for (const RoleRow& row : kRoleTable) {
    const bool given = tensor_of(t, row).given();
    if (given && use_of(row, op) == Use::none) {
      for (const Operator* other : kOperators)
        if (other->uses[row.role] != Use::none) refuse(row.name, other);
    }
    want(given || !must_be_given(row, op), ErrorCode::bad_shape, row.name, " must be given");
  }
  if (!parts && !t.outs.empty()) refuse("outs", &kMerge);
  if (!parts && !t.lses.empty()) refuse("lses", &kMerge);
  if (!mods && !t.mod_buffers.empty()) refuse("mod_buffers", &kForward);
  const RoleRow& base = row_of(op->base);
  const Device device = tensor_of(t, base).device;
  const auto check_one = [&](std::string_view name, const ConstTensor& tensor) {
    check_tensor(name, tensor);
    want(tensor.device == device, ErrorCode::bad_device, name, " must be on ", ShownDevice{device}, ", as ", base.name,
         " (got ", ShownDevice{tensor.device}, ")");
  };
  if (tensor_of(t, base).given()) check_one(base.name, tensor_of(t, base));
  for (std::size_t i = 0; i < t.outs.size(); ++i) check_one(text("outs[", i, "]"), t.outs[i]);
  for (std::size_t i = 0; i < t.lses.size(); ++i) check_one(text("lses[", i, "]"), t.lses[i]);
  for_each_role(op, t, [&](const RoleRow& row, const auto& tensor) {
    if (tensor.given()) check_one(row.name, tensor);
  });
}

void check_outputs(Op op, const Tensors& t) {
  for_each_role(op, t, [&](const RoleRow& row, const auto& tensor) {
    if (writes(row, op) && tensor.given()) check_output(row.name, turned(row.name, tensor));
  });
}

void take_layout(Problem& p, const Tensors& t) {
  const Forms forms = forms_of(p);
  for_each_role(p.op, t, [&](const RoleRow& row, auto tensor) {
    if (!tensor.given()) return;
    p.alignment[static_cast<std::size_t>(row.role)] = alignment_of(tensor);
    if (p.op->any_rank) widen(tensor, rank_of(row.axes));
    p.layout.*row.layout = layout_of(row, forms.of(row), tensor);
  });
}

std::uint8_t alignment_of(const ConstTensor& t) {
  if (t.device.kind == DeviceKind::cpu || !t.given() || t.elements() == 0) return 16;
  return static_cast<std::uint8_t>(1u << std::min(4, std::countr_zero(reinterpret_cast<std::uintptr_t>(t.data))));
}

}  // namespace onepass
