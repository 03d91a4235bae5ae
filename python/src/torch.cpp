// Attention of plain tensors past PyTorch's dispatcher, with as little of Python as can be: a call is read, its results
// are made by PyTorch, its plan is run, and where a gradient is recorded, PyTorch's autograd is told. The Python side
// is onepass/_torch_autograd.py; what is not taken here it computes.
#include "torch.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "base/text.hpp"
#include "plan/cache.hpp"
#include "torch_call.hpp"

namespace nb = nanobind;

namespace onepass::python {
namespace {

// Objects of PyTorch and of the package, from register_torch on. All of it is guarded by the GIL.
struct {
  PyObject *tensor_type, *parameter_type;  // what plain tensors are
  PyObject *included, *excluded;           // functions: keys of the dispatcher's thread state
  std::uint64_t plain_included, plain_excluded;
  PyObject *forward_ad, *is_grad_enabled, *is_deterministic;
  PyObject *empty_like, *bool_dtype, *float32;
  PyObject* dtype;        // ("dtype",), the name of an argument
  PyObject* record;       // autograd.Function.apply of the package's
  PyObject* new_results;  // (q, v, packed, return_lse) -> (out, lse or None), of any problem
  PyObject* causal;
} words{};
struct {
  PyObject *requires_grad, *is_neg, *raw_repr, *new_empty, *zero, *dtype, *current_level, *to_save, *kept,
      *materialize_grads;
} names{};

nb::object checked(PyObject* result) {
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
nb::object attribute(PyObject* object, PyObject* name) { return checked(PyObject_GetAttr(object, name)); }

// A tensor of PyTorch's own types; a tensor of zeros without memory is not taken later.
bool is_plain(PyObject* x) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(x));
  return x == Py_None || type == words.tensor_type || type == words.parameter_type;
}

// A tensor with the negative bit means the negative of the numbers in its memory. PyTorch sets it for the imaginary
// part of a conjugated complex tensor, and torch._neg_view for any dtype.
bool is_negative(PyObject* x) { return x != Py_None && called_method(names.is_neg, x).ptr() != Py_False; }
bool any_negative(const TorchCall& call, const Tensors& t) {
  for (const RoleRow& row : kRoleTable)
    if (row.input && (t.*row.input).given() && is_negative(call.tensor(row.role))) return true;
  return false;
}

std::uint64_t keys(PyObject* function) {
  return nb::cast<std::uint64_t>(called_method(names.raw_repr, called(function).ptr()));
}

// No mode, transformation or recorder is at work: a mode includes keys, autocast takes some from the excluded ones;
// PyTorch's backward (2.11) excludes one more.
bool is_plain_state() {
  return (keys(words.included) & ~words.plain_included) == 0 && (words.plain_excluded & ~keys(words.excluded)) == 0 &&
         nb::cast<int>(attribute(words.forward_ad, names.current_level)) < 0;
}

bool is_true(PyObject* function) { return called(function).ptr() == Py_True; }
bool requires_grad(PyObject* x) { return x != Py_None && attribute(x, names.requires_grad).ptr() == Py_True; }

constexpr Role kDifferentiable[] = {Role::q, Role::k, Role::v, Role::bias, Role::alibi_slopes, Role::sinks};

bool needs_gradient(const TorchCall& call) {
  if (!is_true(words.is_grad_enabled)) return false;
  for (const Role role : kDifferentiable)
    if (requires_grad(call.tensor(role))) return true;
  return false;
}

// The general path has the sentence that refuses it.
bool has_no_gradients(const Tensors& t) {
  return t.seqused_k.given() || t.page_table.given() || t.tree.given() || t.q.dtype == DType::f8e4m3 ||
         t.k.dtype == DType::f8e4m3;
}

bool packed(const Tensors& t) { return t.cu_seqlens_q.given() || t.cu_seqlens_k.given(); }

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

nb::object pair(nb::handle a, nb::handle b) { return checked(PyTuple_Pack(2, a.ptr(), b.ptr())); }

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
  static std::uint32_t last_present;
  static std::array<PyObject*, TorchCall::kMax> last;  // alive as long as the tuple
  static PyObject* kept = nullptr;
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

// The result for the caller, or None: not taken, and nothing has been done. grouped: k and v may have fewer heads than
// q. into: the caller's out, or None.
nb::object forward(const TorchCall& call, bool dispatched, bool sdpa, bool grouped, nb::handle into) {
  if (!torch_exchange) return nb::none();
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
  const bool asked = call[torch_at.return_lse] == Py_True, records = !dispatched && needs_gradient(call);
  if (records && (has_no_gradients(t) || !into.is_none())) return nb::none();
  const auto [out, lse] = new_results(call, t, into, asked || records, asked);
  if (!taken.take(Role::out, out) || !taken.take(Role::lse, lse)) return nb::none();
  taken.run();
  const nb::object results = asked || dispatched ? pair(out, lse) : out;
  return records ? recorded(call, out, lse, results) : results;
}

nb::object forward_of_tuple(nb::handle arguments, bool dispatched, nb::handle into) {
  return forward(TorchCall(arguments), dispatched, false, false, into);
}

nb::object sdpa(nb::handle query, nb::handle key, nb::handle value, nb::handle mask, nb::handle dropout_p,
                nb::handle is_causal, nb::handle scale, nb::handle enable_gqa) {
  if (!torch_exchange || (is_causal.ptr() != Py_False && (is_causal.ptr() != Py_True || !mask.is_none())))
    return nb::none();
  TorchCall call;
  call[torch_at.of_role[static_cast<std::size_t>(Role::q)]] = query.ptr();
  call[torch_at.of_role[static_cast<std::size_t>(Role::k)]] = key.ptr();
  call[torch_at.of_role[static_cast<std::size_t>(Role::v)]] = value.ptr();
  call[torch_at.dropout_p] = dropout_p.ptr();
  call[torch_at.scale] = scale.ptr();
  if (is_causal.ptr() == Py_True) call[torch_at.mask] = words.causal;
  if (!mask.is_none()) {
    if (!is_plain(mask.ptr())) return nb::none();
    const Role role = attribute(mask.ptr(), names.dtype).ptr() == words.bool_dtype ? Role::bool_mask : Role::bias;
    call[torch_at.of_role[static_cast<std::size_t>(role)]] = mask.ptr();
  }
  return forward(call, false, true, enable_gqa.ptr() == Py_True, nb::none());
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
  for (const Role role : {Role::seqused_k, Role::page_table, Role::tree})
    if (call.tensor(role) != Py_None) return nb::none();
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

// from: everything of `words` by its name, and what register_torch_calls takes.
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

}  // namespace

void add_torch(nb::module_& m) {
  using namespace nb::literals;
  m.def("torch_register", &register_torch, "words"_a);
  m.def("torch_forward", &forward_of_tuple, "arguments"_a, "dispatched"_a, "into"_a.none());
  m.def("torch_sdpa", &sdpa, "query"_a, "key"_a, "value"_a, "attn_mask"_a.none(), "dropout_p"_a, "is_causal"_a,
        "scale"_a.none(), "enable_gqa"_a);
  m.def("torch_tell", &tell, "context"_a, "given"_a);
  m.def("torch_gradients", &gradients, "saved"_a, "kept"_a, "wanted"_a, "dout"_a.none(), "dlse"_a.none());
  m.def("torch_backward", &backward, "arguments"_a, "dout"_a, "dlse"_a.none(), "out"_a, "lse"_a, "into"_a);
  m.def("kept_plans", [] { return plan::plan_cache().size(); });
}

}  // namespace onepass::python
