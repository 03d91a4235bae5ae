// The handlers that XLA calls: buffers and attributes of a call frame become tensors and options, nothing is copied,
// and on CUDA the work is put on XLA's stream, with scratch memory of XLA's, and not waited for. The Python side, which
// chooses operands and attributes, is onepass/_jax_call.py.
#include "parts.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <exception>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "cuda/host/kernels.hpp"
#include "interfaces/executors.hpp"
#include "onepass/onepass.hpp"
#include "plan/compute.hpp"
#include "plan/plan.hpp"
#include "problem/append/append.hpp"
#include "problem/attention/options.hpp"
#include "problem/callers_layout.hpp"
#include "problem/roles.hpp"
#include "xla_call.hpp"

namespace nb = nanobind;

namespace onepass::python {
namespace {

// An option as _jax_call.attributes() has it.
template <class T>
void take(T& to, const Options& options, const char* name) {
  if constexpr (std::is_same_v<T, bool>) {
    to = options.boolean(name);
  } else if constexpr (std::is_same_v<T, std::string>) {
    to = options.string(name);
  } else if constexpr (std::is_same_v<T, std::array<std::uint32_t, 4>>) {
    const std::string_view text = options.string(name);
    const char* at = text.data();
    for (std::uint32_t& n : to) at = std::from_chars(at, text.data() + text.size(), n).ptr + 1;
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    to = static_cast<T>(options.integer(name));
  } else if constexpr (std::is_same_v<T, Band>) {
    to = {.causal = options.boolean("causal"),
          .align = Align{static_cast<std::uint8_t>(options.integer("align"))},
          .left = options.integer("left"),
          .right = options.integer("right"),
          .offset = options.integer("align_offset")};
  } else if constexpr (std::is_floating_point_v<T>) {
    to = static_cast<T>(options.number(name));
  } else if (const double x = options.number(name); !std::isnan(x)) {  // NaN: none
    to = static_cast<typename T::value_type>(x);
  }
}

Attention attention_of(const Options& options) {
  Attention a;
  for_each_option([&](const OptionRow& row, auto option) { take(a.*option, options, row.name); });
  return a;
}

// A seed as JAX has it, because most of its programs have no int64: two words of 32 bits, the low one first.
Tensor seed_of(const Tensor& words) {
  want(words.dtype == DType::i32 && words.elements() == 2, ErrorCode::internal,
       "the custom call's dropout_seed must be int32 of shape [2]");
  return {words.data, DType::i64, {1}, {1}, words.device};
}

// The tensors that the words of `names` name, in the order of the call's buffers. "mod:NAME" is a buffer of
// expressions, "before" the operand whose memory a result may be.
void take(Op op, Tensors& tensors, std::vector<const void*>& before, std::string_view names, const xla::Buffers& given,
          Device device) {
  for_each_buffer(names, given, device, [&](std::string_view name, const Tensor& view) {
    if (name == "before") return before.push_back(view.data);
    if (name == "cos_sin_cache") return take_cos_sin_cache(tensors, view);
    if (name.starts_with("mod:")) {
      tensors.mod_buffers.push_back({std::string(name.substr(4)), view});
      return;
    }
    bool found = false;
    for_each_role(tensors, [&](const RoleRow& row, auto& tensor) {
      if (name != row.name || use_of(row, op) == Use::none) return;
      found = true;
      tensor = row.role == Role::dropout_seed ? seed_of(view) : turned(row.name, view);
    });
    want(found, ErrorCode::internal, "the custom call names a tensor '", name, "'");
  });
}

CallersLayout layout_of(const Options& options) {
  const auto has = [&](const char* name) { return options.string("operands").find(name) != std::string_view::npos; };
  return {options.boolean("tokens_first"), has("page_table") || has("slot_mapping")};
}

// A custom call of an operator.
struct Call {
  Call(Op of, const xla::CallFrame& frame, DeviceKind kind)
      : op(of), options(frame.attributes), runtime(frame), layout(layout_of(options)) {
    const Device device = kind == DeviceKind::cuda ? runtime.device() : Device{};
    take(op, tensors, before, options.string("operands"), frame.arguments, device);
    take(op, tensors, before, options.string("results"), frame.results, device);
    launch.executor = executor_of(static_cast<int>(options.integer("threads")));
    if (kind == DeviceKind::cuda) launch.stream = runtime.stream();
  }

  const Op op;
  const Options options;
  Runtime runtime;
  const CallersLayout layout;
  Tensors tensors;
  std::vector<const void*> before;
  Launch launch;
};

void compute(Call& call, const CallOptions& options, std::string_view implementation = {}) {
  const Plan plan = plan::planned(call.op, call.tensors, options, call.launch.executor->workers(), implementation);
  if (problem_of(plan).device.kind == DeviceKind::cuda)
    call.launch.workspace = call.runtime.workspace(plan.workspace_bytes());
  plan::run_planned(plan, call.tensors, call.launch);
}

template <Op op>
void compute_attention(const xla::CallFrame& frame, DeviceKind kind) {
  Call call(op, frame, kind);
  compute(call, CallOptions{attention_of(call.options)}, call.options.string("implementation"));
}

void compute_fp8(const xla::CallFrame& frame, DeviceKind kind) {
  Call call(kForward, frame, kind);
  const Options& o = call.options;
  CallOptions options{attention_of(o)};
  options.fp8 = {.by_block = o.boolean("fp8_by_block"),
                 .hadamard = o.boolean("fp8_hadamard"),
                 .center = o.boolean("fp8_center"),
                 .seed = static_cast<std::uint64_t>(o.integer("fp8_seed"))};
  compute(call, options, o.string("implementation"));
}

void compute_quantize(const xla::CallFrame& frame, DeviceKind kind) {
  Call call(kQuantize, frame, kind);
  CallOptions options;
  options.hadamard = call.options.boolean("hadamard");
  options.seed = static_cast<std::uint64_t>(call.options.integer("seed"));
  compute(call, options);
}

// The results hold the caches of the operands `before`: they lie where these do, XLA having copied what others still
// read; but where a loop cuts the caches from a larger array, XLA (of JAX 0.11 on CUDA) gives results of their own.
void put_before(const Tensor& cache, const void* before, void* stream) {
  if (cache.data == before || cache.elements() == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(cache.elements()) * size_of(cache.dtype);
  if (cache.device.kind == DeviceKind::cpu) {
    std::memcpy(cache.data, before, bytes);
    return;
  }
  const cuda::ContextScope scope(cuda::device_facts(cache.device.index));
  const auto address = [](const void* p) { return reinterpret_cast<cuda::DevicePtr>(p); };
  cuda::check_cuda(
      cuda::driver()->copy_on_device(address(cache.data), address(before), bytes, static_cast<cuda::Stream>(stream)),
      "cuMemcpyDtoDAsync");
}

void append(const xla::CallFrame& frame, DeviceKind kind) {
  Call call(kAppend, frame, kind);
  want(call.before.size() == 2, ErrorCode::internal, "the custom call has ", call.before.size(),
       " caches; 2 are expected");
  put_before(call.tensors.k_cache, call.before[0], call.launch.stream);
  put_before(call.tensors.v_cache, call.before[1], call.launch.stream);
  CallOptions options;
  options.interleaved = call.options.boolean("interleaved");
  compute(call, options);
}

xla::Status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::unsupported: return xla::Status::unimplemented;
    case ErrorCode::out_of_memory: return xla::Status::resource_exhausted;
    case ErrorCode::internal:
    case ErrorCode::device_failure: return xla::Status::internal;
    default: return xla::Status::invalid_argument;
  }
}

// XLA asks a handler for its version when it is registered. What is used here has been the same in all of version 0, so
// the answer is XLA's own, as long as its first number is 0.
bool answers_version(const xla::CallFrame& frame) {
  for (xla::Extension* e = frame.head.extension_start; e; e = e->next) {
    if (e->type != xla::kMetadata) continue;
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(e)->metadata;
    const bool known = frame.api && frame.api->version.major == 0;
    metadata.version.major = 0;
    metadata.version.minor = known ? frame.api->version.minor : 1;
    metadata.traits = 0;
    return true;
  }
  return false;
}

template <void (*run)(const xla::CallFrame&, DeviceKind), DeviceKind kind>
xla::Error* handler(xla::CallFrame* frame) {
  if (answers_version(*frame)) return nullptr;
  std::string sentence;
  xla::Status status = xla::Status::internal;
  try {
    run(*frame, kind);
    return nullptr;
  } catch (const Error& e) {
    sentence = e.what();
    status = status_of(e.code());
  } catch (const std::exception& e) {
    sentence = e.what();
  }
  xla::ErrorCreate error{{sizeof error, nullptr}, sentence.c_str(), status};
  return frame->api->error_create(&error);
}

nb::dict jax_handlers() {
  nb::dict all;
  const auto add = [&](const char* name, xla::Handler* cpu, xla::Handler* cuda) {
    nb::dict platforms;
    platforms["cpu"] = nb::capsule(reinterpret_cast<void*>(cpu));
    platforms["CUDA"] = nb::capsule(reinterpret_cast<void*>(cuda));
    all[name] = platforms;
  };
  add("onepass_attention", &handler<compute_attention<kForward>, DeviceKind::cpu>,
      &handler<compute_attention<kForward>, DeviceKind::cuda>);
  add("onepass_attention_backward", &handler<compute_attention<kBackward>, DeviceKind::cpu>,
      &handler<compute_attention<kBackward>, DeviceKind::cuda>);
  add("onepass_attention_jvp", &handler<compute_attention<kJvp>, DeviceKind::cpu>,
      &handler<compute_attention<kJvp>, DeviceKind::cuda>);
  add("onepass_attention_backward_jvp", &handler<compute_attention<kBackwardJvp>, DeviceKind::cpu>,
      &handler<compute_attention<kBackwardJvp>, DeviceKind::cuda>);
  add("onepass_attention_fp8", &handler<compute_fp8, DeviceKind::cpu>, &handler<compute_fp8, DeviceKind::cuda>);
  add("onepass_quantize", &handler<compute_quantize, DeviceKind::cpu>, &handler<compute_quantize, DeviceKind::cuda>);
  add("onepass_append_kv", &handler<append, DeviceKind::cpu>, &handler<append, DeviceKind::cuda>);
  return all;
}

}  // namespace

void add_jax(nb::module_& m) { m.def("jax_handlers", &jax_handlers); }

}  // namespace onepass::python
