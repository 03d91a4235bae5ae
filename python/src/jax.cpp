// The handlers that XLA calls: buffers and attributes of a call frame become tensors and options, nothing is copied,
// and on CUDA the work is put on XLA's stream, with scratch memory of XLA's, and not waited for. The Python side, which
// chooses operands and attributes, is onepass/jax.py.
#include "jax.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/roles.hpp"
#include "core/text.hpp"
#include "cuda/host/kernels.hpp"
#include "executors.hpp"
#include "onepass/onepass.hpp"
#include "xla_ffi.hpp"

namespace nb = nanobind;

namespace onepass::python {
namespace {

// The options of a call by name, as jax.py passes them.
class Options {
 public:
  explicit Options(const xla::Attributes& attributes) : attributes_(attributes) {}

  std::string_view string(std::string_view name) const {
    const auto* bytes = static_cast<const xla::Bytes*>(value(name, xla::AttributeKind::string));
    return {bytes->data, bytes->size};
  }
  bool boolean(std::string_view name) const { return scalar<bool>(name, xla::Type::pred); }
  std::int64_t integer(std::string_view name) const { return scalar<std::int64_t>(name, xla::Type::s64); }
  double number(std::string_view name) const { return scalar<double>(name, xla::Type::f64); }

 private:
  const void* value(std::string_view name, xla::AttributeKind kind) const {
    for (std::int64_t i = 0; i < attributes_.size; ++i) {
      const xla::Bytes& found = *attributes_.names[i];
      if (std::string_view(found.data, found.size) == name && attributes_.kinds[i] == kind)
        return attributes_.values[i];
    }
    throw Error(ErrorCode::internal, text("the custom call has no attribute ", name, " of the expected kind"));
  }
  template <class T>
  T scalar(std::string_view name, xla::Type type) const {
    const auto* found = static_cast<const xla::Scalar*>(value(name, xla::AttributeKind::scalar));
    want(found->dtype == type, ErrorCode::internal, "attribute ", name, " is of XLA's type ", int(found->dtype));
    T result;
    std::memcpy(&result, found->value, sizeof result);
    return result;
  }

  const xla::Attributes& attributes_;
};

Attention attention_of(const Options& options) {
  Attention a;
  a.band = {.causal = options.boolean("causal"),
            .align = Align{static_cast<std::uint8_t>(options.integer("align"))},
            .left = options.integer("left"),
            .right = options.integer("right"),
            .offset = options.integer("align_offset")};
  if (const double scale = options.number("scale"); !std::isnan(scale)) a.scale = scale;  // NaN: the default
  a.softcap = static_cast<float>(options.number("softcap"));
  a.dropout_p = static_cast<float>(options.number("dropout_p"));
  a.seed = static_cast<std::uint64_t>(options.integer("seed"));
  a.score_mod = options.string("score_mod");
  a.mask_mod = options.string("mask_mod");
  a.max_seqlen_q = options.integer("max_seqlen_q");
  a.max_seqlen_k = options.integer("max_seqlen_k");
  a.deterministic = options.boolean("deterministic");
  a.batch_invariant = options.boolean("batch_invariant");
  return a;
}

DType dtype_of(std::string_view name, xla::Type type) {
  switch (type) {
    case xla::Type::f32: return DType::f32;
    case xla::Type::f16: return DType::f16;
    case xla::Type::bf16: return DType::bf16;
    case xla::Type::pred: return DType::boolean;
    case xla::Type::s32: return DType::i32;
    default:
      throw Error(ErrorCode::bad_dtype, text(name, " is of XLA's type ", int(type), ", which no tensor here is"));
  }
}

Tensor view_of(std::string_view name, const xla::Buffer& buffer, Device device) {
  want(buffer.rank > 0 && buffer.rank <= kMaxRank, ErrorCode::bad_shape, name, " has ", buffer.rank,
       " dimensions; 1 to ", kMaxRank, " are accepted");
  Tensor view;
  view.data = buffer.data;
  view.rank = static_cast<int>(buffer.rank);
  view.dtype = dtype_of(name, buffer.dtype);
  view.device = device;
  std::int64_t step = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = buffer.dims[i];
    view.stride[i] = step;
    step *= std::max<std::int64_t>(buffer.dims[i], 1);
  }
  return view;
}

// JAX has [batch, seq, heads, dim] and [batch, seq, heads] where onepass has heads before tokens; scores stay as they
// are.
bool has_tokens_before_heads(const RoleRow& row) {
  return (row.axes[2] == Axis::seq_q || row.axes[2] == Axis::seq_k) && row.axes[3] != Axis::seq_k;
}

// Calls with(name, view) for each of a call's buffers and the word of `names` that names it.
template <class With>
void for_each_buffer(std::string_view names, const xla::Buffers& given, Device device, const With& with) {
  for (std::int64_t i = 0; i < given.size; ++i) {
    const std::string_view name = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    with(name, view_of(name, *static_cast<const xla::Buffer*>(given.buffers[i]), device));
  }
}

// Heads before tokens.
Tensor heads_first(const Tensor& view) {
  return view.rank == 4 ? view.permuted({0, 2, 1, 3}) : view.permuted({0, 2, 1});
}

// The tensors that the words of `names` name, in the order of the call's buffers; "mod:NAME" is a buffer of
// expressions.
void take(Tensors& tensors, std::string_view names, const xla::Buffers& given, Device device, bool tokens_first) {
  const bool paged = names.find("page_table") != names.npos;  // k and v are [pages, page_size, heads, dim] then
  for_each_buffer(names, given, device, [&](std::string_view name, const Tensor& view) {
    if (name.starts_with("mod:")) {
      tensors.mod_buffers.push_back({std::string(name.substr(4)), view});
      return;
    }
    bool found = false;
    for_each_role(tensors, [&](const RoleRow& row, auto& tensor) {
      if (name != row.name) return;
      found = true;
      const bool swapped = tokens_first && has_tokens_before_heads(row) && !(paged && row.axes[2] == Axis::seq_k);
      tensor = swapped ? heads_first(view) : view;
    });
    want(found, ErrorCode::internal, "the custom call names a tensor '", name, "'");
  });
}

// What XLA provides on a device.
class Runtime {
 public:
  explicit Runtime(const xla::CallFrame& frame) : api_(*frame.api), context_(frame.context) {}
  ~Runtime() {
    if (!memory_.data()) return;
    xla::MemoryFree free{{sizeof free, nullptr}, context_, memory_.size(), memory_.data()};
    if (xla::Error* error = api_.memory_free(&free)) message_of(error);
  }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Device device() const {
    want(api_.head.struct_size >= sizeof(xla::Api) && api_.device_get, ErrorCode::bad_device,
         "this jaxlib does not say on which device it calls; 0.6 and later do");
    xla::DeviceGet device{{sizeof device, nullptr}, context_, 0};
    check(api_.device_get(&device));
    return {DeviceKind::cuda, device.ordinal};
  }
  void* stream() const {
    xla::StreamGet stream{{sizeof stream, nullptr}, context_, nullptr};
    check(api_.stream_get(&stream));
    return stream.stream;
  }
  // Given back when the call has been enqueued: XLA reuses memory in the order of its stream. It promises no alignment
  // beyond kXlaAlignment, and refuses to be asked for more (0.10.2).
  std::span<std::byte> workspace(std::size_t bytes) {
    constexpr std::size_t kXlaAlignment = 16, kAlignment = 256;
    if (bytes == 0) return {};
    const std::size_t size = bytes + kAlignment - kXlaAlignment;
    xla::MemoryAllocate memory{{sizeof memory, nullptr}, context_, size, kXlaAlignment, nullptr};
    check(api_.memory_allocate(&memory), ErrorCode::out_of_memory);
    memory_ = {static_cast<std::byte*>(memory.data), size};
    const std::size_t past = reinterpret_cast<std::uintptr_t>(memory.data) % kAlignment;
    return memory_.subspan(past == 0 ? 0 : kAlignment - past, bytes);
  }

 private:
  std::string message_of(xla::Error* error) const {
    xla::ErrorGetMessage get{{sizeof get, nullptr}, error, nullptr, 0};
    api_.error_get_message(&get);
    const std::string message = get.message ? get.message : "";
    xla::ErrorDestroy destroy{{sizeof destroy, nullptr}, error};
    api_.error_destroy(&destroy);
    return message;
  }
  void check(xla::Error* error, ErrorCode code = ErrorCode::device_failure) const {
    if (error) throw Error(code, text("XLA: ", message_of(error)));
  }

  const xla::Api& api_;
  xla::Context* context_;
  std::span<std::byte> memory_;
};

template <Op op>
void compute(const xla::CallFrame& frame, DeviceKind kind) {
  const Options options(frame.attributes);
  Runtime runtime(frame);
  const Device device = kind == DeviceKind::cuda ? runtime.device() : Device{};
  const bool tokens_first = options.boolean("tokens_first");
  Tensors tensors;
  take(tensors, options.string("operands"), frame.arguments, device, tokens_first);
  take(tensors, options.string("results"), frame.results, device, tokens_first);
  const Attention attention = attention_of(options);
  const std::string_view implementation = options.string("implementation");
  Launch launch{.executor = executor_of(static_cast<int>(options.integer("threads")))};
  if (kind == DeviceKind::cpu) {
    op == Op::backward ? onepass::attention_backward(tensors, attention, launch, implementation)
                       : onepass::attention(tensors, attention, launch, implementation);
    return;
  }
  launch.stream = runtime.stream();
  const Plan plan = make_plan(make_problem(attention, tensors), implementation, launch.executor);
  launch.workspace = runtime.workspace(plan.workspace_bytes());
  run(plan, tensors, launch);
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
  const Options options(frame.attributes);
  const Runtime runtime(frame);
  const Device device = kind == DeviceKind::cuda ? runtime.device() : Device{};
  const std::string_view operands = options.string("operands");
  const bool tokens_first = options.boolean("tokens_first"), paged = operands.find("page_table") != operands.npos;
  AppendTensors t;
  std::vector<const void*> before;
  const auto take_all = [&](std::string_view names, const xla::Buffers& given, const auto& known) {
    for_each_buffer(names, given, device, [&](std::string_view name, const Tensor& view) {
      if (name == "before") return before.push_back(view.data);
      const auto found =
          std::find_if(std::begin(known), std::end(known), [&](const auto& x) { return x.first == name; });
      want(found != std::end(known), ErrorCode::internal, "the custom call names a tensor '", name, "'");
      const bool swapped = tokens_first && view.rank == 4 && !(paged && (name == "k" || name == "v"));
      *found->second = swapped ? heads_first(view) : view;
    });
  };
  take_all(operands, frame.arguments,
           std::array<std::pair<std::string_view, ConstTensor*>, 8>{{{"k_new", &t.k_new},
                                                                     {"v_new", &t.v_new},
                                                                     {"seqused_k", &t.seqused_k},
                                                                     {"page_table", &t.page_table},
                                                                     {"cu_seqlens_q", &t.cu_seqlens_q},
                                                                     {"cos", &t.cos},
                                                                     {"sin", &t.sin},
                                                                     {"q", &t.q}}});
  take_all(options.string("results"), frame.results,
           std::array<std::pair<std::string_view, Tensor*>, 3>{{{"k", &t.k}, {"v", &t.v}, {"q_out", &t.q_out}}});
  Launch launch{.executor = executor_of(static_cast<int>(options.integer("threads")))};
  if (kind == DeviceKind::cuda) launch.stream = runtime.stream();
  want(before.size() == 2, ErrorCode::internal, "the custom call has ", before.size(), " caches; 2 are expected");
  put_before(t.k, before[0], launch.stream);
  put_before(t.v, before[1], launch.stream);
  append_kv(t, options.boolean("interleaved"), launch);
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
  add("onepass_attention", &handler<compute<Op::forward>, DeviceKind::cpu>,
      &handler<compute<Op::forward>, DeviceKind::cuda>);
  add("onepass_attention_backward", &handler<compute<Op::backward>, DeviceKind::cpu>,
      &handler<compute<Op::backward>, DeviceKind::cuda>);
  add("onepass_append_kv", &handler<append, DeviceKind::cpu>, &handler<append, DeviceKind::cuda>);
  return all;
}

}  // namespace

void add_jax(nb::module_& m) { m.def("jax_handlers", &jax_handlers); }

}  // namespace onepass::python
