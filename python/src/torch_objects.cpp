#include "torch_objects.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <tuple>
#include <utility>

#include "problem/roles.hpp"

namespace onepass::python {

bool is_plain(PyObject* x) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(x));
  return x == Py_None || type == words.tensor_type || type == words.parameter_type;
}

bool is_negative(PyObject* x) { return x != Py_None && called_method(names.is_neg, x).ptr() != Py_False; }
bool any_negative(const TorchCall& call, const Tensors& t) {
  for (const RoleRow& row : kRoleTable)
    if (row.input && (t.*row.input).given() && is_negative(call.tensor(row.role))) return true;
  return false;
}

static std::uint64_t keys(PyObject* function) {
  return nb::cast<std::uint64_t>(called_method(names.raw_repr, called(function).ptr()));
}

bool is_plain_state() {
  return (keys(words.included) & ~words.plain_included) == 0 && (words.plain_excluded & ~keys(words.excluded)) == 0 &&
         nb::cast<int>(attribute(words.forward_ad, names.current_level)) < 0;
}

bool is_true(PyObject* function) { return called(function).ptr() == Py_True; }
bool requires_grad(PyObject* x) { return x != Py_None && attribute(x, names.requires_grad).ptr() == Py_True; }

void register_torch(const nb::dict& from) {
  const auto kept = [&](const char* name) { return nb::object(from[name]).release().ptr(); };  // for good
  words.tensor_type = kept("Tensor");
  words.parameter_type = kept("Parameter");
  words.included = kept("included");
  words.excluded = kept("excluded");
  std::tie(words.plain_included, words.plain_excluded) =
      std::pair(nb::cast<std::uint64_t>(from["plain_included"]), nb::cast<std::uint64_t>(from["plain_excluded"]));
  words.forward_ad = kept("forward_ad");
  words.is_grad_enabled = kept("is_grad_enabled");
  words.is_deterministic = kept("is_deterministic");
  words.empty_like = kept("empty_like");
  words.bool_dtype = kept("bool");
  words.float32 = kept("float32");
  words.record = kept("record");
  words.new_results = kept("new_results");
  words.causal = kept("causal");
  const std::pair<PyObject**, const char*> interned[] = {{&names.requires_grad, "requires_grad"},
                                                         {&names.is_neg, "is_neg"},
                                                         {&names.raw_repr, "raw_repr"},
                                                         {&names.new_empty, "new_empty"},
                                                         {&names.zero, "zero_"},
                                                         {&names.dtype, "dtype"},
                                                         {&names.current_level, "_current_level"},
                                                         {&names.to_save, "to_save"},
                                                         {&names.kept, "kept"},
                                                         {&names.materialize_grads, "materialize_grads"}};
  for (const auto& [to, name] : interned) *to = PyUnicode_InternFromString(name);
  words.dtype = PyTuple_Pack(1, names.dtype);
  register_torch_calls(from["exchange"], nb::cast<nb::tuple>(from["names"]), nb::cast<nb::tuple>(from["defaults"]),
                       nb::cast<int>(from["inputs"]), nb::cast<nb::dict>(from["masks"]), from["threads"],
                       nb::cast<std::string>(from["place"]));
}

}  // namespace onepass::python
