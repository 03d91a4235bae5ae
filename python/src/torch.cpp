// Attention of plain tensors past PyTorch's dispatcher: a call is read, its results are made by PyTorch, its plan is
// run, and where a gradient is recorded, PyTorch's autograd is told. The Python side is onepass/_torch_autograd.py;
// what is not taken here it computes.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <utility>

#include "item.hpp"
#include "libtorch/schemas.hpp"
#include "parts.hpp"
#include "plan/cache.hpp"
#include "torch_objects.hpp"

namespace onepass::python {
namespace {

constexpr Role kDifferentiable[] = {Role::q, Role::k, Role::v, Role::bias, Role::alibi_slopes, Role::sinks};

bool needs_gradient(const TorchCall& call) {
  return std::ranges::any_of(kDifferentiable, [&](Role role) { return requires_grad(call.tensor(role)); });
}
bool loses_gradient(const TorchCall& call) {
  for (int i = static_cast<int>(std::size(kDifferentiable)); i < torch_at.inputs; ++i)
    if (requires_grad(call[i])) return true;
  return false;
}

// The general path has the sentence that refuses it.
bool has_no_gradients(const Tensors& t) {
  return has_forward_alone([&](const RoleRow& row) { return (t.*row.input).given(); }) || t.q.dtype == DType::f8e4m3 ||
         t.k.dtype != t.q.dtype;
}

// (out, lse or None), as _torch_op.new_results makes them, or the caller's out with a new lse. An LSE that the caller
// never sees is made through DLPack, which takes half of the time; it would know nothing of record_stream.
std::pair<nb::object, nb::object> new_results(const TorchCall& call, const Tensors& t, nb::handle into, bool with_lse,
                                              bool lse_seen) {
  PyObject *const q = call.tensor(Role::q), *const v = call.tensor(Role::v);
  if (!into.is_none() && !with_lse) return {nb::borrow(into), nb::none()};
  if (packed(t) || t.q.dtype == DType::f8e4m3 || t.q.shape[t.q.rank - 1] != t.v.shape[t.v.rank - 1]) {
    const nb::object both =
        called(words.new_results, q, v, packed(t) ? Py_True : Py_False, with_lse ? Py_True : Py_False);
    return {into.is_none() ? nb::object(both[0]) : nb::borrow(into), both[1]};
  }
  nb::object out = into.is_none() ? called(words.empty_like, q) : nb::borrow(into);
  if (!with_lse) return {std::move(out), nb::none()};
  const Dims rows = turned("q", t.q).shape;  // and the head dim, as the caller has them
  if (!lse_seen) return {std::move(out), new_floats(rows.data(), t.q.rank - 1, t.q.device)};
  const nb::object shape = checked(PyTuple_New(t.q.rank - 1));
  for (int i = 0; i + 1 < t.q.rank; ++i)
    if (PyTuple_SetItem(shape.ptr(), i, PyLong_FromLongLong(rows[i])) != 0) throw nb::python_error();
  PyObject* arguments[] = {nullptr, q, shape.ptr(), words.float32};
  return {std::move(out), checked(PyObject_VectorcallMethod(names.new_empty, arguments + 1,
                                                            2 | PY_VECTORCALL_ARGUMENTS_OFFSET, words.dtype))};
}

nb::object tuple_of(PyObject* const* from, std::size_t size) {
  nb::object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(size)));
  for (std::size_t i = 0; i < size; ++i) {
    Py_INCREF(from[i]);
    if (PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), from[i]) != 0) throw nb::python_error();
  }
  return tuple;
}

// (which inputs are given, as bits; the options): the same object as for the call before where that was alike.
nb::object kept_of(const TorchCall& call, std::uint32_t present) {
  ONEPASS_KEPT std::uint32_t last_present;
  ONEPASS_KEPT std::array<PyObject*, TorchCall::kMax> last;  // alive as long as the tuple
  ONEPASS_KEPT PyObject* kept = nullptr;                     // for good, even where its thread ends
  PyObject* const* const options = call.items.data() + torch_at.inputs;
  const std::size_t n = static_cast<std::size_t>(torch_at.all - torch_at.inputs);
  if (!kept || present != last_present || !std::equal(options, options + n, last.data())) {
    Py_XDECREF(kept);
    kept = nullptr;
    kept = pair(nb::int_(present), tuple_of(options, n)).release().ptr();
    last_present = present;
    std::copy_n(options, n, last.data());
  }
  return nb::borrow(kept);
}

// The results of autograd: `results` with a history. What it keeps is (inputs that are given, out, lse).
nb::object recorded(const TorchCall& call, nb::handle out, nb::handle lse, nb::handle results) {
  std::uint32_t present = 0;
  std::array<PyObject*, TorchCall::kMax> saved;
  std::size_t n = 0;
  for (int i = 0; i < torch_at.inputs; ++i) {
    if (call[i] == Py_None) continue;
    present |= 1u << i;
    saved[n++] = call[i];
  }
  saved[n++] = out.ptr();
  saved[n++] = lse.ptr();
  const nb::object kept = kept_of(call, present);
  const nb::object told = checked(PyTuple_Pack(3, tuple_of(saved.data(), n).ptr(), kept.ptr(), results.ptr()));
  std::array<PyObject*, std::size(kDifferentiable) + 2> arguments{};
  std::size_t count = 1;
  for (const Role role : kDifferentiable)
    if (call.tensor(role) != Py_None) arguments[count++] = call.tensor(role);
  arguments[count++] = told.ptr();
  return checked(
      PyObject_Vectorcall(words.record, arguments.data() + 1, (count - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

// The result for the caller, or None: not taken, and nothing has been done. grouped: k and v may have fewer heads than
// q.
nb::object forward(const TorchCall& call, bool dispatched, bool sdpa, bool grouped) {
  if (!torch_exchange) return nb::none();
  const nb::handle into = call.into;
  if (!into.is_none() && (!is_plain(into.ptr()) || requires_grad(into.ptr()) || is_negative(into.ptr())))
    return nb::none();
  TakenCall taken(kForward);
  if (!taken.take_options(call)) return nb::none();
  if (!dispatched) {
    for (int i = 0; i < torch_at.inputs; ++i)
      if (!is_plain(call[i])) return nb::none();
    if (!is_plain_state()) return nb::none();
  }
  const Tensors& t = taken.tensors;
  if (!taken.take_inputs(call) || (!dispatched && any_negative(call, t))) return nb::none();
  if (!t.q.given() || !t.k.given() || !t.v.given()) return nb::none();
  if (sdpa) {
    for (const ConstTensor* x : {&t.q, &t.k, &t.v})
      if (x->rank != 4 || x->shape[0] != t.q.shape[0] || (x != &t.q && x->shape[1] != t.k.shape[1])) return nb::none();
    if (t.q.shape[1] != t.k.shape[1] && !(grouped && t.q.shape[1] % t.k.shape[1] == 0)) return nb::none();
  }
  const bool asked = call[torch_at.return_lse] == Py_True, may_record = !dispatched && is_true(words.is_grad_enabled);
  const bool records = may_record && needs_gradient(call);
  if ((records && (has_no_gradients(t) || !into.is_none())) || (may_record && loses_gradient(call))) return nb::none();
  const auto [out, lse] = new_results(call, t, into, asked || records, asked);
  if (!taken.take(Role::out, out) || !taken.take(Role::lse, lse)) return nb::none();
  taken.run();
  const nb::object results = asked || dispatched ? pair(out, lse) : out;
  return records ? recorded(call, out, lse, results) : results;
}

nb::object forward_of_tuple(nb::handle arguments, bool dispatched, nb::handle into) {
  TorchCall call(arguments);
  call.into = into.ptr();
  return forward(call, dispatched, false, false);
}

nb::object forward_of_words(nb::handle q, nb::handle k, nb::handle v, nb::handle options) {
  TorchCall call;
  call.tensor(Role::q) = q.ptr();
  call.tensor(Role::k) = k.ptr();
  call.tensor(Role::v) = v.ptr();
  return call.take_words(options) ? forward(call, false, false, false) : nb::none();
}

nb::object sdpa(nb::handle query, nb::handle key, nb::handle value, nb::handle mask, nb::handle dropout_p,
                nb::handle is_causal, nb::handle scale, nb::handle enable_gqa) {
  if (!torch_exchange || (is_causal.ptr() != Py_False && (is_causal.ptr() != Py_True || !mask.is_none())))
    return nb::none();
  TorchCall call;
  call.tensor(Role::q) = query.ptr();
  call.tensor(Role::k) = key.ptr();
  call.tensor(Role::v) = value.ptr();
  call[torch_at.dropout_p] = dropout_p.ptr();
  call[torch_at.scale] = scale.ptr();
  if (is_causal.ptr() == Py_True) call[torch_at.mask] = words.causal;
  if (!mask.is_none()) {
    if (!is_plain(mask.ptr())) return nb::none();
    const Role role = attribute(mask.ptr(), names.dtype).ptr() == words.bool_dtype ? Role::bool_mask : Role::bias;
    call.tensor(role) = mask.ptr();
  }
  return forward(call, false, true, enable_gqa.ptr() == Py_True);
}

}  // namespace

void add_torch(nb::module_& m) {
  using namespace nb::literals;
  m.def("torch_schemas", [] {
    const nb::object all = checked(PyDict_New());
    const auto schemas = libtorch::schemas();
    for (std::size_t i = 0; i < schemas.size(); ++i) all[libtorch::kOperatorNames[i]] = nb::cast(schemas[i]);
    return all;
  });
  m.def("torch_register", &register_torch, "words"_a);
  m.def("torch_forward", &forward_of_tuple, "arguments"_a, "dispatched"_a, "into"_a.none());
  m.def("torch_attention", &forward_of_words, "q"_a.none(), "k"_a.none(), "v"_a.none(), "options"_a);
  m.def("torch_sdpa", &sdpa, "query"_a, "key"_a, "value"_a, "attn_mask"_a.none(), "dropout_p"_a, "is_causal"_a,
        "scale"_a.none(), "enable_gqa"_a);
  add_torch_gradients(m);
  m.def("kept_plans", [] { return plan::plan_cache().size(); });
}

}  // namespace onepass::python
