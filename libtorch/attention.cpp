// attention and attention_backward: a call is read, its results are made by PyTorch, and its plan is run on PyTorch's
// threads or stream.
#include <algorithm>
#include <iterator>
#include <string>

#include "algebra/scalar.hpp"
#include "base/text.hpp"
#include "cuda/driver/api.hpp"
#include "libtorch/operators.hpp"
#include "libtorch/options.hpp"
#include "libtorch/run.hpp"
#include "libtorch/views.hpp"
#include "problem/callers_layout.hpp"
#include "problem/checks/accepted.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/op.hpp"
#include "problem/roles.hpp"

namespace onepass::libtorch {
namespace {

consteval int item(std::string_view name) { return at<kAttentionItems>(name); }

class Call {
 public:
  Call(Op op, const Arguments& arguments);

  // Reads or writes it; null: it is not given.
  void take(Role role, AtenTensorHandle tensor);
  void take(Role role, const Owned& tensor) { take(role, tensor.get()); }
  // On the meta device results have no numbers.
  void run();

  bool packed() const { return tensors_.cu_seqlens_q.given() || tensors_.cu_seqlens_k.given(); }
  AtenTensorHandle q() const { return q_; }  // as it is read
  AtenTensorHandle v() const { return arguments_.tensor(item("v")); }

 private:
  void take_mod_buffers();
  void take_random_seed();

  const Op op_;
  const Arguments& arguments_;
  const CallersLayout layout_;
  CallOptions options_;
  Tensors tensors_;
  Views views_;
  AtenTensorHandle q_ = nullptr;
};

Call::Call(Op op, const Arguments& a)
    : op_(op),
      arguments_(a),
      layout_(a.boolean(item("tokens_first")), a.given(item("page_table"))),
      options_(options_of(op, a)) {
  static const std::array positions = [] {
    std::array<int, kRoles> all;
    for (std::size_t i = 0; i < kRoles; ++i) all[i] = position_of(kAttentionItems, kRoleTable[i].name);
    return all;
  }();
  for (const RoleRow& row : kRoleTable) {
    const int i = positions[static_cast<std::size_t>(row.role)];
    if (i < 0 || row.output || (row.forward == Use::none && row.backward == Use::none) || !a.given(i)) continue;
    want(use_of(row, op) != Use::none, ErrorCode::unsupported, op->call, " does not support ", row.name);
    take(row.role, a.tensor(i));
  }
  take_mod_buffers();
}

void Call::take(Role role, AtenTensorHandle tensor) {
  if (!tensor) return;
  const RoleRow& row = row_of(role);
  const bool writable = writes(row, op_);
  if (!writable) tensor = views_.readable(row.name, tensor, row.types, row.unit_last);
  if (role == Role::q) q_ = tensor;
  Tensor view = views_.view(row.name, tensor, accepted_of(row.types), writable);
  if (row.fit == Fit::broadcast) widen(view, kMaxRank);
  view = turned(row.name, view);
  row.output ? void(tensors_.*row.output = view) : void(tensors_.*row.input = view);
}

void Call::take_mod_buffers() {
  std::string_view names = arguments_.text(item("mod_names")).value_or("");
  for (AtenTensorHandle buffer : arguments_.tensors(item("mod_buffers"))) {
    const std::string name(names.substr(0, names.find(',')));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const std::string called = "mod buffer " + name;
    buffer = views_.readable(called.c_str(), buffer, Types::i32, false);
    const std::int64_t one = 1;
    if (sizes_of(buffer).empty()) buffer = views_.hold(torch::stable::reshape(kept(buffer), {&one, 1}));
    tensors_.mod_buffers.push_back({name, views_.view(called.c_str(), buffer, kMod, false)});
  }
}

void Call::take_random_seed() {
  const AtenTensorHandle drawn = arguments_.tensor(item("random_seed"));
  if (!drawn) return;
  const Owned seed = kept(drawn);
  want(dtype_of(drawn) == code_of(DType::i64) && seed.numel() == 1, ErrorCode::bad_dtype,
       "random_seed must be int64 of one element (got ", dtype_name(drawn), " of ", seed.numel(), " elements)");
  if (!seed.is_cpu()) {
    const std::int64_t one = 1;
    take(Role::dropout_seed, views_.hold(torch::stable::reshape(seed, {&one, 1})));
    return;
  }
  const cuda::Driver* const driver = tensors_.q.device.kind == DeviceKind::cuda ? cuda::driver() : nullptr;
  if (driver) {
    int capturing = cuda::kNotCapturing;
    driver->stream_is_capturing(static_cast<cuda::Stream>(stream_of(tensors_.q.device.index)), &capturing);
    want(capturing == cuda::kNotCapturing, ErrorCode::bad_value,
         "dropout_p > 0 requires a seed while a CUDA graph is captured, because every replay drops the same weights");
  }
  options_.seed = static_cast<std::uint64_t>(*static_cast<const std::int64_t*>(seed.const_data_ptr()));
}

void Call::run() {
  if (views_.meta()) return;
  take_random_seed();
  Place place(tensors_.q.device, arguments_.integer(item("threads")));
  libtorch::run(op_, tensors_, options_, place, q(), arguments_.text(item("implementation")).value_or(""));
}

// ------------------------------------------------------------------------------------------------------- results
Owned none_of(AtenTensorHandle like, std::int32_t dtype) {
  const std::int64_t nothing = 0;
  return empty({&nothing, 1}, {}, dtype, like);
}

// Packed tokens beyond the last sequence are not computed.
Owned filled(Owned made, bool packed, double with) { return packed ? torch::stable::fill_(made, with) : made; }

// As new_out of the Python package.
Owned new_out(const Call& call, std::optional<std::int32_t> asked) {
  const auto q = sizes_of(call.q()), v = sizes_of(call.v());
  const std::int32_t of_q = dtype_of(call.q());
  const std::int32_t dtype = asked.value_or(of_q == code_of(DType::f8e4m3) ? code_of(DType::bf16) : of_q);
  if (q.back() == v.back() && dtype == of_q) return filled(empty_like(call.q()), call.packed(), 0);
  std::vector<std::int64_t> sizes(q.begin(), q.end());
  sizes.back() = v.back();
  return filled(empty_in_order(sizes, dtype, call.q()), call.packed(), 0);
}

// An LSE or the rows' maxima; nothing unless they are asked for.
Owned new_rows(const Call& call, bool asked) {
  const std::int32_t dtype = code_of(DType::f32);
  if (!asked) return none_of(call.q(), dtype);
  const auto q = sizes_of(call.q());
  std::vector<std::int64_t> sizes(q.begin(), q.end() - 1);
  if (call.packed()) sizes = {q[1], q[0]};
  return filled(empty(sizes, {}, dtype, call.q()), call.packed(), ScalarArith<double>::neg_inf());
}

constexpr Role kDifferentiable[] = {Role::q, Role::k, Role::v, Role::bias, Role::alibi_slopes, Role::sinks};
constexpr Role kGradients[] = {Role::dq, Role::dk, Role::dv, Role::dbias, Role::dalibi_slopes, Role::dsinks};

// As the tensor lies in memory; of side inputs in float32.
Owned new_gradient(Role of, AtenTensorHandle x, bool packed) {
  const auto sizes = sizes_of(x), strides = strides_of(x);
  if (of != Role::q && of != Role::k && of != Role::v) return empty(sizes, {}, code_of(DType::f32), x);
  const bool readable = sizes.back() <= 1 || strides.back() == 1;
  return filled(readable ? empty_like(x) : empty(sizes, {}, dtype_of(x), x), packed, 0);
}

void want_ranks(const Call& call) {
  for (const auto& [name, x] : {std::pair("q", call.q()), std::pair("v", call.v())})
    want(sizes_of(x).size() >= 2, ErrorCode::bad_shape, name,
         " must have the shape [batch, heads, seq, dim], or with cu_seqlens [total, heads, dim] (got ",
         sizes_of(x).size(), " dimensions)");
}

}  // namespace

void attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Arguments a(stack, kAttentionItems);
  Call call(kForward, a);
  want_ranks(call);
  const bool with_lse = a.boolean(item("return_lse")), with_max = a.boolean(item("return_max"));
  const Owned out = new_out(call, a.dtype(item("out_dtype"))), lse = new_rows(call, with_lse),
              row_max = new_rows(call, with_max);
  call.take(Role::out, out);
  if (with_lse) call.take(Role::lse, lse);
  if (with_max) call.take(Role::row_max, row_max);
  call.run();
  stack[0] = result(out);
  stack[1] = result(lse);
  stack[2] = result(row_max);
}

void attention_backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Arguments before(stack, kBackwardItems), a(stack + kBackwardItems.size(), kAttentionItems);
  Call call(kBackward, a);
  want_ranks(call);
  for (const Role role : {Role::dout, Role::dlse, Role::out, Role::lse})
    call.take(role, before.tensor(position_of(kBackwardItems, row_of(role).name)));
  const auto wanted = before.integers(at<kBackwardItems>("wanted"));
  constexpr std::size_t n = std::size(kGradients);
  want(wanted.size() == n, ErrorCode::bad_value, "wanted must have ", n, " elements (got ", wanted.size(), ")");
  std::vector<Owned> gradients;
  for (std::size_t i = 0; i < n; ++i) {
    const AtenTensorHandle of = a.tensor(static_cast<int>(i));
    want(wanted[i] == 0 || of, ErrorCode::bad_value, "wanted asks for ", row_of(kGradients[i]).name, ", but ",
         row_of(kDifferentiable[i]).name, " is None");
    if (wanted[i] == 0) {
      gradients.push_back(none_of(call.q(), dtype_of(before.tensor(0))));
      continue;
    }
    gradients.push_back(new_gradient(kDifferentiable[i], of, call.packed()));
    call.take(kGradients[i], gradients.back());
  }
  call.run();
  for (std::size_t i = 0; i < n; ++i) stack[i] = result(gradients[i]);
}

}  // namespace onepass::libtorch
