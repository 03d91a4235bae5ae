#include "torch_call.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <variant>

#include "base/fork.hpp"
#include "base/text.hpp"
#include "interfaces/executors.hpp"
#include "interrupt.hpp"
#include "openmp.hpp"
#include "plan/compute.hpp"

namespace nb = nanobind;

namespace onepass::python {

// All of it is guarded by the GIL.
TorchPositions torch_at;
const dlpack::ExchangeTable* torch_exchange = nullptr;

namespace {

std::array<PyObject*, TorchCall::kMax> defaults;
PyObject* masks = nullptr;        // a dict from mask to (causal, align)
PyObject* num_threads = nullptr;  // torch.get_num_threads
OpenMpParallel openmp = nullptr;  // PyTorch's, if it was found

bool is_none(PyObject* object) { return object == Py_None; }

std::optional<DType> dtype_of(const dlpack::DataType& t) {
  if (t.lanes != 1) return {};
  switch (t.code << 8 | t.bits) {
    case dlpack::kFloat << 8 | 32: return DType::f32;
    case dlpack::kBfloat << 8 | 16: return DType::bf16;
    case dlpack::kFloat << 8 | 16: return DType::f16;
    case dlpack::kInt << 8 | 32: return DType::i32;
    case dlpack::kBool << 8 | 8: return DType::boolean;
    case dlpack::kFloat8E4m3 << 8 | 8: return DType::f8e4m3;
    default: return {};
  }
}

// Memory of PyTorch's.
dlpack::ManagedTensor* allocated(const std::int64_t* shape, int rank, dlpack::DataType dtype, Device device) {
  dlpack::Tensor like{};
  like.device = {device.kind == DeviceKind::cuda ? dlpack::kCuda : dlpack::kCpu, device.index};
  like.rank = rank;
  like.dtype = dtype;
  like.shape = const_cast<std::int64_t*>(shape);  // which is only read
  std::string error;
  const auto set_error = [](void* to, const char*, const char* message) { *static_cast<std::string*>(to) = message; };
  dlpack::ManagedTensor* memory = nullptr;
  if (torch_exchange->allocate(&like, &memory, &error, set_error) != 0)
    throw Error(ErrorCode::out_of_memory, text("PyTorch could not allocate memory: ", error));
  return memory;
}

// Scratch memory, which is PyTorch's to reuse in stream order once it is given back.
class Scratch {
 public:
  Scratch(std::size_t bytes, Device device) {
    if (bytes == 0) return;
    const std::int64_t size = static_cast<std::int64_t>(bytes);
    memory_ = allocated(&size, 1, {dlpack::kUint, 8, 1}, device);
    span = {static_cast<std::byte*>(memory_->tensor.data) + memory_->tensor.byte_offset, bytes};
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (memory_ && memory_->deleter) memory_->deleter(memory_);
  }
  std::span<std::byte> span;

 private:
  dlpack::ManagedTensor* memory_ = nullptr;
};

}  // namespace

TorchCall::TorchCall() : items(defaults) {}
TorchCall::TorchCall(nb::handle arguments) : TorchCall() {
  const Py_ssize_t n = std::min<Py_ssize_t>(PyTuple_Size(arguments.ptr()), torch_at.all);
  for (Py_ssize_t i = 0; i < n; ++i) items[static_cast<std::size_t>(i)] = PyTuple_GetItem(arguments.ptr(), i);
}
bool TorchCall::given(int i) const { return i >= 0 && (*this)[i] != defaults[static_cast<std::size_t>(i)]; }
PyObject* TorchCall::tensor(Role role) const { return (*this)[torch_at.of_role[static_cast<std::size_t>(role)]]; }
PyObject*& TorchCall::tensor(Role role) { return (*this)[torch_at.of_role[static_cast<std::size_t>(role)]]; }

// Reads an option. False: out of the ordinary. A tensor may have a gradient that would be lost.
template <class T>
bool TakenCall::take_option(T& to, const TorchCall& call, int at) {
  PyObject* const given = call.given(at) ? call[at] : nullptr;
  if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::optional<float>> ||
                std::is_same_v<T, std::array<std::uint32_t, 4>>) {
    return !given;
  } else if constexpr (std::is_same_v<T, Band>) {
    return take_band(to, call, given);
  } else if constexpr (std::is_same_v<T, std::int64_t>) {  // None is 0, which is nothing to be given
    to = given ? nb::cast<std::int64_t>(nb::handle(given)) : 0;
    if (given && to < 1) return false;
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {  // of dropout
    return true;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (given) to = nb::cast<bool>(nb::handle(given));
  } else if constexpr (Choice<T>) {
    const auto chosen = given ? choice_named<T>(nb::cast<std::string>(nb::handle(given))) : T{};
    if (!chosen) return false;
    to = *chosen;
  } else {
    if (!is_none(call[at]) && !PyFloat_Check(call[at]) && !PyLong_Check(call[at])) return false;
    const double x = given ? nb::cast<double>(nb::handle(given)) : 0;
    if (given) to = static_cast<T>(x);
    if (x != 0 && to == T{}) return false;  // of less than fp32 holds
  }
  return true;
}

// The band: mask, align_offset and both sides of the window.
bool TakenCall::take_band(Band& band, const TorchCall& call, PyObject* mask) {
  if (mask) {
    PyObject* const found = PyDict_GetItemWithError(masks, mask);
    if (!found) {
      PyErr_Clear();
      return false;
    }
    band.causal = nb::cast<bool>(nb::handle(PyTuple_GetItem(found, 0)));
    band.align = Align{nb::cast<std::uint8_t>(nb::handle(PyTuple_GetItem(found, 1)))};
  }
  if (call.given(torch_at.left)) band.left = nb::cast<std::int64_t>(nb::handle(call[torch_at.left]));
  if (call.given(torch_at.right)) band.right = nb::cast<std::int64_t>(nb::handle(call[torch_at.right]));
  PyObject* const offset = call[torch_at.align_offset];
  if ((band.align == Align::offset) == is_none(offset)) return false;
  if (!is_none(offset)) band.offset = nb::cast<std::int64_t>(nb::handle(offset));
  return true;
}

bool TakenCall::take_options(const TorchCall& call) try {
  for (const int i : {torch_at.mod_buffers, torch_at.implementation, torch_at.out_dtype, torch_at.fp8})
    if (call.given(i)) return false;
  if (!is_backward(op) && call.given(torch_at.return_max)) return false;
  const bool tokens_first = call[torch_at.tokens_first] == Py_True;
  layout_.emplace(tokens_first, !is_none(call.tensor(Role::page_table)));
  bool taken = true;
  for (std::size_t i = 0; taken && i < kAttentionOptions.size(); ++i) {
    const OptionRow& row = kAttentionOptions[i];
    if (!takes_option(row, is_backward(op))) continue;
    std::visit([&](auto option) { taken = take_option(attention.*option, call, torch_at.of_option[i]); }, row.member);
  }
  if (!taken || attention.dropout_p != 0) return false;
  PyObject* const threads = call[torch_at.threads];
  threads_ = is_none(threads) ? 0 : nb::cast<int>(nb::handle(threads));
  return is_none(threads) || (threads_ >= 1 && threads_ <= kMaxThreads);
} catch (const nb::cast_error&) {
  return false;
}

bool TakenCall::take(Role role, nb::handle object) {
  if (object.is_none()) return true;
  const RoleRow& row = row_of(role);
  dlpack::Tensor t{};
  if (torch_exchange->export_view(object.ptr(), &t) != 0) {
    PyErr_Clear();
    return false;
  }
  if (t.rank < 1 || t.rank > kMaxRank) return false;
  const std::optional<DType> dtype = dtype_of(t.dtype);
  if (!dtype || (row.types == Types::f32 && dtype != DType::f32) || (row.types == Types::i32 && dtype != DType::i32))
    return false;
  if (t.device.type != dlpack::kCpu && t.device.type != dlpack::kCuda) return false;
  Tensor view;
  view.dtype = *dtype;
  if (t.device.type == dlpack::kCuda) view.device = {DeviceKind::cuda, t.device.index};
  view.data = static_cast<char*>(t.data) + t.byte_offset;
  const int missing = row.fit == Fit::broadcast ? kMaxRank - t.rank : 0;  // leading dimensions of size 1
  view.rank = t.rank + missing;
  for (int i = 0; i < t.rank; ++i) {
    view.shape[i + missing] = t.shape[i];
    view.stride[i + missing] = t.strides[i];
  }
  if (row.unit_last && view.shape[view.rank - 1] > 1 && view.stride[view.rank - 1] != 1) return false;
  if (view.elements() == 0 || !t.data) return false;
  view = turned(row.name, view);
  row.output ? void(tensors.*row.output = view) : void(tensors.*row.input = view);
  return true;
}

bool TakenCall::take_inputs(const TorchCall& call) {
  for (const RoleRow& row : kRoleTable) {
    const int i = torch_at.of_role[static_cast<std::size_t>(row.role)];
    if (i >= 0 && use_of(row, op) != Use::none && !take(row.role, call[i])) return false;
  }
  return true;
}

void TakenCall::run() {
  const Device device = tensors.q.device;
  const bool as_pytorch = threads_ == 0 && device.kind == DeviceKind::cpu;
  if (as_pytorch) threads_ = nb::cast<int>(nb::steal(PyObject_CallNoArgs(num_threads)));
  OpenMp theirs(openmp, threads_);
  const bool by_theirs = as_pytorch && threads_ > 1 && openmp && fork_count() == 0;
  Interruptible executor(by_theirs ? theirs : *executor_of(threads_));
  const Plan plan = plan::planned(op, tensors, attention, executor.workers());
  Launch launch{.executor = &executor};
  if (device.kind == DeviceKind::cuda &&
      torch_exchange->current_stream(dlpack::kCuda, device.index, &launch.stream) != 0)
    throw nb::python_error();
  const Scratch scratch(plan.workspace_bytes(), device);
  launch.workspace = scratch.span;
  {
    const nb::gil_scoped_release unlocked;
    plan::run_planned(plan, tensors, launch);
  }
  executor.raise();
}

nb::object new_floats(const std::int64_t* shape, int rank, Device device) {
  void* object = nullptr;
  if (torch_exchange->import_managed(allocated(shape, rank, {dlpack::kFloat, 32, 1}, device), &object) != 0)
    throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(object));
}

void register_torch_calls(nb::handle capsule, const nb::tuple& names, const nb::tuple& known_defaults, int inputs,
                          const nb::dict& known_masks, nb::handle threads, const std::string& place) {
  want(names.size() <= TorchCall::kMax, ErrorCode::internal, "a call has ", names.size(), " items");
  const auto position = [&](const char* name) {
    for (std::size_t i = 0; i < names.size(); ++i)
      if (std::strcmp(nb::cast<const char*>(nb::handle(names[i].ptr())), name) == 0) return static_cast<int>(i);
    return -1;
  };
  for (const RoleRow& row : kRoleTable) torch_at.of_role[static_cast<std::size_t>(row.role)] = position(row.name);
  const auto known = [&](const char* name) {
    const int at = position(name);
    want(at >= 0, ErrorCode::internal, "a call has no option ", name);
    return at;
  };
  const std::pair<int*, const char*> others[] = {{&torch_at.mod_buffers, "mod_buffers"},
                                                 {&torch_at.mask, "mask"},
                                                 {&torch_at.align_offset, "align_offset"},
                                                 {&torch_at.left, "window_left"},
                                                 {&torch_at.right, "window_right"},
                                                 {&torch_at.scale, "scale"},
                                                 {&torch_at.dropout_p, "dropout_p"},
                                                 {&torch_at.deterministic, "deterministic"},
                                                 {&torch_at.implementation, "implementation"},
                                                 {&torch_at.threads, "threads"},
                                                 {&torch_at.fp8, "fp8"},
                                                 {&torch_at.out_dtype, "out_dtype"},
                                                 {&torch_at.tokens_first, "tokens_first"},
                                                 {&torch_at.return_lse, "return_lse"},
                                                 {&torch_at.return_max, "return_max"}};
  for (const auto& [to, name] : others) *to = known(name);
  for (std::size_t i = 0; i < kAttentionOptions.size(); ++i) {
    const OptionRow& row = kAttentionOptions[i];
    torch_at.of_option[i] = known(std::holds_alternative<Band Attention::*>(row.member) ? "mask" : row.name);
  }
  torch_at.inputs = inputs;
  torch_at.all = static_cast<int>(names.size());
  for (const nb::handle kept : {nb::handle(known_defaults), nb::handle(known_masks)}) kept.inc_ref();
  masks = known_masks.ptr();
  num_threads = nb::borrow(threads).release().ptr();
  openmp = openmp_at(place);
  for (std::size_t i = 0; i < names.size(); ++i) defaults[i] = known_defaults[i].ptr();
  register_torch_words(names);
  auto* table = static_cast<dlpack::ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (!table) throw nb::python_error();
  while (table && table->version.major > 1) table = table->older;
  torch_exchange = table && table->version.major == 1 && table->export_view ? table : nullptr;
}

}  // namespace onepass::python
