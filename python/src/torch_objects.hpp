// PyTorch's objects and Python's calls of them, with as little of Python as can be, and what is asked of tensors.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "torch_call.hpp"

namespace onepass::python {

namespace nb = nanobind;

// Objects of PyTorch and of the package. register_torch sets them at import; later calls only read them.
struct TorchWords {
  PyObject *tensor_type, *parameter_type;  // what plain tensors are
  PyObject *included, *excluded;           // functions: keys of the dispatcher's thread state
  std::uint64_t plain_included, plain_excluded;
  PyObject *forward_ad, *is_grad_enabled, *is_deterministic;
  PyObject *empty_like, *bool_dtype, *float32;
  PyObject* dtype;        // ("dtype",), the name of an argument
  PyObject* record;       // autograd.Function.apply of the package's
  PyObject* new_results;  // (q, v, packed, return_lse) -> (out, lse or None), of any problem
  PyObject* causal;
};
inline TorchWords words{};
struct TorchNames {
  PyObject *requires_grad, *is_neg, *raw_repr, *new_empty, *zero, *dtype, *current_level, *to_save, *kept,
      *materialize_grads;
};
inline TorchNames names{};

inline nb::object checked(PyObject* result) {
  if (!result) throw nb::python_error();
  return nb::steal(result);
}
template <class... Arguments>
nb::object called(PyObject* function, Arguments... arguments) {
  PyObject* array[] = {nullptr, arguments...};
  return checked(
      PyObject_Vectorcall(function, array + 1, sizeof...(arguments) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}
template <class... Arguments>
nb::object called_method(PyObject* name, PyObject* self, Arguments... arguments) {
  PyObject* array[] = {nullptr, self, arguments...};
  return checked(
      PyObject_VectorcallMethod(name, array + 1, (1 + sizeof...(arguments)) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}
inline nb::object attribute(PyObject* object, PyObject* name) { return checked(PyObject_GetAttr(object, name)); }
inline nb::object pair(nb::handle a, nb::handle b) { return checked(PyTuple_Pack(2, a.ptr(), b.ptr())); }

// A tensor of PyTorch's own types; a tensor of zeros without memory is not taken later.
bool is_plain(PyObject* x);
// A tensor with the negative bit means the negative of the numbers in its memory. PyTorch sets it for the imaginary
// part of a conjugated complex tensor, and torch._neg_view for any dtype.
bool is_negative(PyObject* x);
bool any_negative(const TorchCall& call, const Tensors& tensors);
// No mode, transformation or recorder is at work: a mode includes keys, autocast takes some from the excluded ones;
// PyTorch's backward (2.11) excludes one more.
bool is_plain_state();
bool is_true(PyObject* function);
bool requires_grad(PyObject* x);
// True if one of the inputs that a forward has and its backward has not is `given`.
template <class Given>
bool has_forward_alone(const Given& given) {
  return std::ranges::any_of(kRoleTable, [&](const RoleRow& row) {
    return row.input && row.forward != Use::none && row.backward == Use::none && given(row);
  });
}
inline bool packed(const Tensors& t) { return t.cu_seqlens_q.given() || t.cu_seqlens_k.given(); }

// from: everything of `words` by its name, and what register_torch_calls takes.
void register_torch(const nb::dict& from);
// torch_tell, torch_gradients and torch_backward
void add_torch_gradients(nb::module_& m);

}  // namespace onepass::python
