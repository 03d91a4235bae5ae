// Gradients of attention of plain tensors: what autograd keeps of a forward, and the backward that reads it.
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/text.hpp"
#include "torch_objects.hpp"

namespace onepass::python {
namespace {

// The forward of the package's autograd.Function: (context, differentiable inputs.., what is told) -> results. Sets
// what the context's save_for_backward and set_materialize_grads set.
nb::object tell(nb::handle context, const nb::args& given) {
  PyObject* const told = PyTuple_GetItem(given.ptr(), PyTuple_Size(given.ptr()) - 1);
  const nb::object results = nb::borrow(PyTuple_GetItem(told, 2));
  const auto set = [&](PyObject* name, PyObject* value) {
    if (PyObject_SetAttr(context.ptr(), name, value) != 0) throw nb::python_error();
  };
  set(names.to_save, PyTuple_GetItem(told, 0));
  set(names.kept, PyTuple_GetItem(told, 1));
  if (PyTuple_Check(results.ptr())) set(names.materialize_grads, Py_False);  // of one result there always is a gradient
  return results;
}

// Where gradients are written by a backward that takes what a forward recorded.
struct Into {
  Role of, gradient;
};
constexpr Into kGradients[] = {{Role::q, Role::dq},
                               {Role::k, Role::dk},
                               {Role::v, Role::dv},
                               {Role::bias, Role::dbias},
                               {Role::alibi_slopes, Role::dalibi_slopes},
                               {Role::sinks, Role::dsinks}};

// The gradients by what `record` was given, of which the last is not a tensor; None: not taken.
nb::object gradients(nb::handle saved, nb::handle kept, nb::handle wanted, nb::handle dout, nb::handle dlse) {
  if (!torch_exchange || dout.is_none() || !is_plain(dout.ptr()) || !is_plain(dlse.ptr())) return nb::none();
  if (is_true(words.is_grad_enabled) || !is_plain_state()) return nb::none();
  const auto present = nb::cast<std::uint32_t>(nb::handle(PyTuple_GetItem(kept.ptr(), 0)));
  PyObject* const options = PyTuple_GetItem(kept.ptr(), 1);
  TorchCall call;
  Py_ssize_t n = 0;
  for (int i = 0; i < torch_at.inputs; ++i) {
    if (!(present >> i & 1)) continue;
    call[i] = PyTuple_GetItem(saved.ptr(), n++);
    if (!is_plain(call[i])) return nb::none();
  }
  for (int i = torch_at.inputs; i < torch_at.all; ++i) call[i] = PyTuple_GetItem(options, i - torch_at.inputs);
  if (is_true(words.is_deterministic)) call[torch_at.deterministic] = Py_True;
  if (has_forward_alone([&](const RoleRow& row) { return call.tensor(row.role) != Py_None; })) return nb::none();
  TakenCall taken(kBackward);
  if (!taken.take_options(call) || !taken.take_inputs(call) || any_negative(call, taken.tensors)) return nb::none();
  const std::pair<Role, PyObject*> others[] = {{Role::out, PyTuple_GetItem(saved.ptr(), n)},
                                               {Role::lse, PyTuple_GetItem(saved.ptr(), n + 1)},
                                               {Role::dout, dout.ptr()},
                                               {Role::dlse, dlse.ptr()}};
  for (const auto& [role, x] : others)
    if (!is_plain(x) || !taken.take(role, x)) return nb::none();
  if (is_negative(dout.ptr()) || is_negative(dlse.ptr())) return nb::none();
  const Py_ssize_t count = PyTuple_Size(wanted.ptr());
  nb::object results = checked(PyTuple_New(count));
  Py_ssize_t i = 0;
  for (const auto& [of, gradient] : kGradients) {
    PyObject* const x = call.tensor(of);
    if (x == Py_None) continue;
    nb::object made = nb::none();
    if (PyTuple_GetItem(wanted.ptr(), i) == Py_True) {
      if (i > 2) return nb::none();  // of side inputs: float32, and cast
      made = called(words.empty_like, x);
      if (packed(taken.tensors)) called_method(names.zero, made.ptr());
      if (!taken.take(gradient, made)) return nb::none();
    }
    if (PyTuple_SetItem(results.ptr(), i++, made.release().ptr()) != 0) throw nb::python_error();
  }
  for (; i < count; ++i)
    if (PyTuple_SetItem(results.ptr(), i, nb::none().release().ptr()) != 0) throw nb::python_error();
  taken.run();
  return results;
}

// A backward into given tensors: dq, dk, dv, dbias, dalibi_slopes and dsinks, or None. False: not taken.
bool backward(nb::handle arguments, nb::handle dout, nb::handle dlse, nb::handle out, nb::handle lse,
              const nb::tuple& into) {
  if (!torch_exchange) return false;
  const TorchCall call(arguments);
  TakenCall taken(kBackward);
  if (!taken.take_options(call) || !taken.take_inputs(call)) return false;
  const std::pair<Role, nb::handle> others[] = {
      {Role::out, out}, {Role::lse, lse}, {Role::dout, dout}, {Role::dlse, dlse}};
  for (const auto& [role, x] : others)
    if (!taken.take(role, x)) return false;
  want(into.size() == std::size(kGradients), ErrorCode::internal, "a backward got ", into.size(), " results");
  for (std::size_t i = 0; i < std::size(kGradients); ++i)
    if (!taken.take(kGradients[i].gradient, into[i])) return false;
  taken.run();
  return true;
}

}  // namespace

void add_torch_gradients(nb::module_& m) {
  using namespace nb::literals;
  m.def("torch_tell", &tell, "context"_a, "given"_a);
  m.def("torch_gradients", &gradients, "saved"_a, "kept"_a, "wanted"_a, "dout"_a.none(), "dlse"_a.none());
  m.def("torch_backward", &backward, "arguments"_a, "dout"_a, "dlse"_a.none(), "out"_a, "lse"_a, "into"_a);
}

}  // namespace onepass::python
