// Calls from PyTorch: tensors, scratch memory and the stream come through DLPack's C exchange table, and a call whose
// tensors and options have the shape of one before takes that one's plan. What is out of the ordinary (dtypes that are
// converted, expressions, dropout, implementations by name) is left to the package's general path, which also has the
// sentences for what is wrong. The Python side, which allocates the results, is onepass/_torch_op.py.
#include "torch.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "core/implementation.hpp"
#include "core/roles.hpp"
#include "core/text.hpp"
#include "dlpack_exchange.hpp"
#include "executors.hpp"
#include "interrupt.hpp"
#include "onepass/onepass.hpp"

namespace nb = nanobind;

namespace onepass::python {
namespace {

const dlpack::ExchangeTable* exchange = nullptr;  // of torch.Tensor; what follows is guarded by the GIL

// Where a call's tuple has what; -1: nowhere.
struct Positions {
  std::array<int, kRoles> of_role;
  int mod_buffers, mask, align_offset, left, right, scale, softcap, dropout_p, max_seqlen_q, max_seqlen_k;
  int batch_invariant, deterministic, score_mod, mask_mod, implementation, threads;
} at;
PyObject* masks = nullptr;  // a dict from mask to (causal, align)

// What decides about a plan, as bytes.
class Key {
 public:
  template <class T>
  void add(const T& value) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string bytes;
};
constexpr std::size_t kMostPlans = 4096;  // then they are forgotten
std::unordered_map<std::string, Plan> plans;

bool same(const dlpack::DataType& t, std::uint8_t code, int bits) {
  return t.code == code && t.bits == bits && t.lanes == 1;
}

// A tensor as a view, and what a plan depends on of it to the key; false: not of a kind that is taken here.
bool take(nb::handle object, const RoleRow& row, Tensor& view, Key& key) {
  dlpack::Tensor t{};
  if (exchange->export_view(object.ptr(), &t) != 0) {
    PyErr_Clear();
    return false;
  }
  if (t.rank < 1 || t.rank > kMaxRank) return false;
  if (same(t.dtype, dlpack::kFloat, 32))
    view.dtype = DType::f32;
  else if (same(t.dtype, dlpack::kBfloat, 16))
    view.dtype = DType::bf16;
  else if (same(t.dtype, dlpack::kFloat, 16))
    view.dtype = DType::f16;
  else if (same(t.dtype, dlpack::kInt, 32))
    view.dtype = DType::i32;
  else if (same(t.dtype, dlpack::kBool, 8))
    view.dtype = DType::boolean;
  else
    return false;
  if (row.types == Types::f32 && view.dtype != DType::f32) return false;
  if (row.types == Types::i32 && view.dtype != DType::i32) return false;
  if (t.device.type != dlpack::kCpu && t.device.type != dlpack::kCuda) return false;
  if (t.device.type == dlpack::kCuda) view.device = {DeviceKind::cuda, t.device.index};
  view.data = static_cast<char*>(t.data) + t.byte_offset;
  const int missing = row.fit == Fit::broadcast ? kMaxRank - t.rank : 0;  // leading dimensions of size 1
  view.rank = t.rank + missing;
  for (int i = 0; i < t.rank; ++i) {
    view.shape[i + missing] = t.shape[i];
    view.stride[i + missing] = t.strides[i];
  }
  if (row.unit_last && view.shape[view.rank - 1] > 1 && view.stride[view.rank - 1] != 1) return false;
  if (view.elements() == 0) return false;
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(view.data);
  key.add(static_cast<std::int64_t>(row.role) | std::int64_t{view.rank} << 8 |
          static_cast<std::int64_t>(view.dtype) << 16 | static_cast<std::int64_t>(address & 15) << 24 |
          static_cast<std::int64_t>(view.device.kind) << 32 | std::int64_t{view.device.index} << 40);
  key.add(view.shape);
  key.add(view.stride);
  return true;
}

nb::handle item(const nb::tuple& args, int i) { return i < 0 ? nb::handle(Py_None) : nb::handle(args[i].ptr()); }
bool none(const nb::tuple& args, int i) { return item(args, i).is_none(); }
std::int64_t integer_or(const nb::tuple& args, int i, std::int64_t otherwise) {
  return none(args, i) ? otherwise : nb::cast<std::int64_t>(item(args, i));
}

// The options of a call; false: there are some that are not taken here.
bool take_options(const nb::tuple& args, Op op, Attention& a, int& threads, Key& key) {
  for (const int i : {at.mod_buffers, at.score_mod, at.mask_mod, at.implementation})
    if (!none(args, i)) return false;
  if (nb::cast<double>(item(args, at.dropout_p)) != 0) return false;
  PyObject* const mask = PyDict_GetItemWithError(masks, item(args, at.mask).ptr());
  if (!mask) {
    PyErr_Clear();
    return false;
  }
  const auto found = nb::borrow<nb::tuple>(mask);
  a.band = {.causal = nb::cast<bool>(found[0]),
            .align = Align{nb::cast<std::uint8_t>(found[1])},
            .left = nb::cast<std::int64_t>(item(args, at.left)),
            .right = nb::cast<std::int64_t>(item(args, at.right)),
            .offset = integer_or(args, at.align_offset, 0)};
  if ((a.band.align == Align::offset) == none(args, at.align_offset)) return false;
  if (!none(args, at.scale)) a.scale = nb::cast<double>(item(args, at.scale));
  a.softcap = nb::cast<float>(item(args, at.softcap));
  a.max_seqlen_q = integer_or(args, at.max_seqlen_q, 0);
  a.max_seqlen_k = integer_or(args, at.max_seqlen_k, 0);
  if (op == Op::backward)
    a.deterministic = nb::cast<bool>(item(args, at.deterministic));
  else
    a.batch_invariant = nb::cast<bool>(item(args, at.batch_invariant));
  threads = static_cast<int>(integer_or(args, at.threads, 0));
  for (const std::int64_t x :
       {std::int64_t{a.band.causal}, static_cast<std::int64_t>(a.band.align), a.band.left, a.band.right, a.band.offset,
        std::int64_t{a.scale.has_value()}, a.max_seqlen_q, a.max_seqlen_k, std::int64_t{a.deterministic},
        std::int64_t{a.batch_invariant}, std::int64_t{threads}})
    key.add(x);
  key.add(a.scale.value_or(0));
  key.add(a.softcap);
  return true;
}

// Scratch memory of PyTorch's, which is its to reuse in stream order once it is given back.
class Scratch {
 public:
  Scratch(std::size_t bytes, Device device) {
    if (bytes == 0) return;
    std::int64_t size = static_cast<std::int64_t>(bytes);
    dlpack::Tensor like{};
    like.device = {device.kind == DeviceKind::cuda ? dlpack::kCuda : dlpack::kCpu, device.index};
    like.rank = 1;
    like.dtype = {dlpack::kUint, 8, 1};
    like.shape = &size;
    std::string error;
    const auto set_error = [](void* to, const char*, const char* message) { *static_cast<std::string*>(to) = message; };
    if (exchange->allocate(&like, &memory_, &error, set_error) != 0)
      throw Error(ErrorCode::out_of_memory, text("no ", bytes, " bytes of workspace could be had: ", error));
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

Plan plan_of(const Key& key, const Attention& attention, const Tensors& tensors, const Executor& executor) {
  const auto found = plans.find(key.bytes);
  if (found != plans.end()) return found->second;
  Plan plan;
  {
    const nb::gil_scoped_release unlocked;
    plan = make_plan(make_problem(attention, tensors), {}, &executor);
  }
  if (plans.size() >= kMostPlans) plans.clear();
  // On the CPU a problem of packed sequences holds their lengths.
  if (!plan.problem().varlen || plan.problem().device.kind == DeviceKind::cuda) plans.emplace(key.bytes, plan);
  return plan;
}

// `given`: the tensors that are no inputs of the forward, a row's name and an object each.
bool compute(Op op, const nb::tuple& args, std::initializer_list<std::pair<Role, nb::handle>> given) {
  if (!exchange) return false;
  thread_local Key key;
  key.bytes.clear();
  key.add(static_cast<std::int64_t>(op));
  Tensors tensors;
  Attention attention;
  int threads = 0;
  try {
    if (!take_options(args, op, attention, threads, key)) return false;
  } catch (const nb::cast_error&) {
    return false;
  }
  bool taken = true;
  for_each_role(tensors, [&](const RoleRow& row, auto& tensor) {
    const int i = at.of_role[static_cast<std::size_t>(row.role)];
    nb::handle object = use_of(row, op) == Use::none || i < 0 ? nb::handle(Py_None) : item(args, i);
    for (const auto& [role, one] : given)
      if (role == row.role) object = one;
    if (!taken || object.is_none()) return;
    Tensor view;
    taken = take(object, row, view, key);
    tensor = view;
  });
  if (!taken) return false;
  key.add(std::int64_t{tensors.v.data == tensors.k.data});  // v may be columns of k
  Interruptible executor(*executor_of(threads));
  const Plan plan = plan_of(key, attention, tensors, executor);
  const Device device = tensors.q.device;
  Launch launch{.executor = &executor};
  if (device.kind == DeviceKind::cuda && exchange->current_stream(dlpack::kCuda, device.index, &launch.stream) != 0)
    throw nb::python_error();
  const Scratch scratch(plan.workspace_bytes(), device);
  launch.workspace = scratch.span;
  {
    const nb::gil_scoped_release unlocked;
    // The key has said that the tensors are the plan's, and new results share no memory with an input. The contents of
    // lengths and pages, which only the CPU can look at, are run's to check.
    if (device.kind == DeviceKind::cuda)
      plan.state()->run(tensors, launch.workspace.data(), executor, launch.stream);
    else
      run(plan, tensors, launch);
  }
  executor.raise();
  return true;
}

bool forward(const nb::tuple& args, nb::handle out, nb::handle lse) {
  return compute(Op::forward, args, {{Role::out, out}, {Role::lse, lse}});
}

// grads: dq, dk, dv, dbias, dalibi_slopes and dsinks, or None.
bool backward(const nb::tuple& args, nb::handle dout, nb::handle dlse, nb::handle out, nb::handle lse,
              const nb::tuple& grads) {
  return compute(Op::backward, args,
                 {{Role::dout, dout},
                  {Role::dlse, dlse},
                  {Role::out, out},
                  {Role::lse, lse},
                  {Role::dq, grads[0]},
                  {Role::dk, grads[1]},
                  {Role::dv, grads[2]},
                  {Role::dbias, grads[3]},
                  {Role::dalibi_slopes, grads[4]},
                  {Role::dsinks, grads[5]}});
}

// torch.Tensor's exchange table, the names of a call's positions, and what the masks mean.
void register_torch(nb::handle capsule, const nb::tuple& names, const nb::dict& known_masks) {
  const auto position = [&](const char* name) {
    for (std::size_t i = 0; i < names.size(); ++i)
      if (std::strcmp(nb::cast<const char*>(nb::handle(names[i].ptr())), name) == 0) return static_cast<int>(i);
    return -1;
  };
  for (const RoleRow& row : kRoleTable) at.of_role[static_cast<std::size_t>(row.role)] = position(row.name);
  const std::pair<int*, const char*> options[] = {{&at.mod_buffers, "mod_buffers"},
                                                  {&at.mask, "mask"},
                                                  {&at.align_offset, "align_offset"},
                                                  {&at.left, "window_left"},
                                                  {&at.right, "window_right"},
                                                  {&at.scale, "scale"},
                                                  {&at.softcap, "softcap"},
                                                  {&at.dropout_p, "dropout_p"},
                                                  {&at.max_seqlen_q, "max_seqlen_q"},
                                                  {&at.max_seqlen_k, "max_seqlen_k"},
                                                  {&at.batch_invariant, "batch_invariant"},
                                                  {&at.deterministic, "deterministic"},
                                                  {&at.score_mod, "score_mod"},
                                                  {&at.mask_mod, "mask_mod"},
                                                  {&at.implementation, "implementation"},
                                                  {&at.threads, "threads"}};
  for (const auto& [to, name] : options) {
    *to = position(name);
    want(*to >= 0, ErrorCode::internal, "a call has no option ", name);
  }
  Py_XDECREF(masks);
  masks = nb::dict(known_masks).release().ptr();
  auto* table = static_cast<dlpack::ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (!table) throw nb::python_error();
  while (table && table->version.major > 1) table = table->older;
  exchange = table && table->version.major == 1 && table->export_view ? table : nullptr;
}

}  // namespace

void add_torch(nb::module_& m) {
  using namespace nb::literals;
  m.def("torch_register", &register_torch, "capsule"_a, "names"_a, "masks"_a);
  m.def("torch_forward", &forward, "args"_a, "out"_a, "lse"_a.none());
  m.def("torch_backward", &backward, "args"_a, "dout"_a, "dlse"_a.none(), "out"_a, "lse"_a, "grads"_a);
  m.def("torch_plans", [] { return plans.size(); });
}

}  // namespace onepass::python
