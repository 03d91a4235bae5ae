// The Python interface: arrays become views (no copies), the GIL is released while computing, errors become exceptions.
// The package's __init__.py allocates results and documents the calls.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "argument.hpp"
#include "base/text.hpp"
#include "block_mask.hpp"
#include "command.hpp"
#include "context_parallel.hpp"
#include "cuda/host/kernels.hpp"
#include "executors.hpp"
#include "interrupt.hpp"
#include "jax.hpp"
#include "onepass/onepass.hpp"
#include "option.hpp"
#include "plan/compute.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/attention/options.hpp"
#include "problem/callers_layout.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/grammar/foreign_words.hpp"
#include "problem/grammar/on.hpp"
#include "problem/roles.hpp"
#include "torch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using onepass::DType;
using onepass::Error;
using onepass::ErrorCode;
using onepass::Tensor;
using onepass::text;
using onepass::python::accepted_of;
using onepass::python::Argument;
using onepass::python::kMod;

PyObject* exception_type(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_dtype: return PyExc_TypeError;
    case ErrorCode::unsupported:
    case ErrorCode::out_of_memory:
    case ErrorCode::device_failure:
    case ErrorCode::internal: return PyExc_RuntimeError;
    default: return PyExc_ValueError;
  }
}

// The tensor of a role in the package's dict. The names become Python's strings once: each costs 40 ns.
nb::handle tensor_of(nb::handle call, const onepass::RoleRow& row) {
  static PyObject* names[onepass::kRoles] = {};  // the GIL is held
  PyObject*& name = names[static_cast<std::size_t>(row.role)];
  if (!name) name = PyUnicode_InternFromString(row.name);
  PyObject* const found = PyDict_GetItemWithError(call.ptr(), name);
  if (!found) throw nb::key_error(row.name);
  return found;
}

bool is_given(const nb::dict& call, const char* name) {
  return call.contains(name) && !nb::handle(call[name]).is_none();
}

// Everything of a call, as the package passes it: tensors by the names of their roles, and what is computed.
struct Call {
  onepass::Op op;
  onepass::CallersLayout layout;
  std::array<Argument, onepass::kRoles> arguments;
  std::vector<Argument> mod_buffers;
  onepass::python::Interruptible executor;
  onepass::Tensors tensors;
  onepass::CallOptions attention;
  onepass::Launch launch;
  std::string implementation;

  // The package says dout of a backward, and of no other call.
  explicit Call(const nb::dict& o)
      : op(o.contains("dout") ? onepass::kBackward : onepass::kForward),
        layout(nb::cast<bool>(o["tokens_first"]), is_given(o, "page_table")),
        executor(*onepass::python::executor_of(nb::cast<int>(o["threads"]))) {
    onepass::for_each_role(tensors, [&](const onepass::RoleRow& row, auto& tensor) {
      if (use_of(row, op) == onepass::Use::none) return;
      Argument& argument = arguments[static_cast<std::size_t>(row.role)];
      argument = Argument(row.name, tensor_of(o, row), accepted_of(row.types), writes(row, op));
      if (row.fit == onepass::Fit::broadcast) argument.broadcast_to_rank4();
      tensor = onepass::turned(row.name, argument.view);
    });
    for (const auto& [name, array] : nb::cast<std::vector<std::pair<std::string, nb::object>>>(o["mod_buffers"])) {
      const std::string called = "mod buffer " + name;
      mod_buffers.emplace_back(called.c_str(), array, kMod);
      tensors.mod_buffers.push_back({name, mod_buffers.back().view});
    }
    onepass::for_each_option([&](const onepass::OptionRow& row, auto option) {
      if (takes_option(row, is_backward(op))) onepass::python::take(attention.*option, o, row.name);
    });
    implementation = nb::cast<std::string>(o["implementation"]);
    launch.executor = &executor;
    launch.stream = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(o["stream"]));
  }
};

// attention, or attention_backward where there is a dout. workspace: None, or bytes -> (owner, address).
void attention(const nb::dict& options) {
  Call call(options);
  const auto planned = [&] {
    return onepass::plan::planned(call.op, call.tensors, call.attention, call.executor.workers(), call.implementation);
  };
  const nb::object allocate = options["workspace"];
  nb::object memory = nb::none();
  onepass::Plan plan;
  if (!allocate.is_none()) {
    plan = planned();
    if (const std::size_t bytes = plan.workspace_bytes()) {
      memory = allocate(bytes);
      call.launch.workspace = {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(memory[1])), bytes};
    }
  }
  {
    const nb::gil_scoped_release unlocked;
    onepass::plan::run_planned(plan.state() ? plan : planned(), call.tensors, call.launch);
  }
  call.executor.raise();
}

// q, k and v are quantized for it. fp8: how, a dict of Fp8Options' words.
onepass::Fp8Options fp8_options(const nb::dict& o) {
  return {.by_block = nb::cast<bool>(o["by_block"]),
          .hadamard = nb::cast<bool>(o["hadamard"]),
          .center = nb::cast<bool>(o["center"]),
          .seed = nb::cast<std::uint64_t>(o["seed"])};
}
void attention_fp8(const nb::dict& options, const nb::dict& fp8) {
  Call call(options);
  const onepass::Fp8Options how = fp8_options(fp8);
  {
    const nb::gil_scoped_release unlocked;
    onepass::attention_fp8(call.tensors, call.attention, how, call.launch, call.implementation);
  }
  call.executor.raise();
}
// target: "sm_90", or empty for this machine.
std::string explain_fp8(const nb::dict& options, const nb::dict& fp8, const std::string& target) {
  const Call call(options);
  const onepass::Fp8Options how = fp8_options(fp8);
  return target.empty() ? onepass::explain(call.tensors, call.attention, how)
                        : onepass::explain_for(target, call.tensors, call.attention, how);
}

std::string explain(const nb::dict& options, const std::string& target) {
  const Call call(options);
  const onepass::Problem problem = onepass::problem_of(call.tensors, call.attention);
  return target.empty() ? onepass::explain(problem) : onepass::explain_for(target, problem);
}

std::string explain_line(const std::string& line, const std::string& target) {
  return target.empty() ? onepass::explain(line) : onepass::explain_for(target, line);
}

// Throws what attention would throw before it computes.
void check(const nb::dict& options) {
  const Call call(options);
  static_cast<void>(
      onepass::make_plan(onepass::problem_of(call.tensors, call.attention), call.implementation, call.launch.executor));
}

// f(launch) without the GIL; what a signal's handler has raised meanwhile comes out behind it.
template <class F>
void unlocked(int threads, std::uintptr_t stream, const F& f) {
  onepass::python::Interruptible executor(*onepass::python::executor_of(threads));
  {
    const nb::gil_scoped_release released;
    f(onepass::Launch{.stream = reinterpret_cast<void*>(stream), .executor = &executor});
  }
  executor.raise();
}
template <class F>
void unlocked(const nb::dict& call, const F& f) {
  unlocked(nb::cast<int>(call["threads"]), nb::cast<std::uintptr_t>(call["stream"]), f);
}

// The arrays that a call names, as views that live as long as this, heads before tokens. None: not given.
template <std::size_t kMaxViews>
class Views {
 public:
  explicit Views(const nb::dict& call) : call_(call) {}
  const Tensor& operator()(const char* name, onepass::Types types, bool writable = false) {
    Argument& argument = arguments_[taken_++];
    argument = Argument(name, call_[name], accepted_of(types), writable);
    return argument.view = onepass::turned(name, argument.view);
  }

 private:
  const nb::dict& call_;
  std::array<Argument, kMaxViews> arguments_;
  std::size_t taken_ = 0;
};

// Packed results, out [total, heads, dim] with lse [heads, total], are merged as [heads, total, dim].
Tensor rows_last(const Tensor& out) { return out.rank == 3 ? out.permuted({1, 0, 2}) : out; }

void merge(const std::vector<nb::object>& outs, const std::vector<nb::object>& lses, nb::handle out, nb::handle lse,
           int threads, std::uintptr_t stream) {
  std::vector<Argument> kept;
  std::vector<onepass::ConstTensor> out_views, lse_views;
  kept.reserve(outs.size() + lses.size());
  for (std::size_t i = 0; i < outs.size(); ++i) {
    out_views.push_back(
        rows_last(kept.emplace_back(text("outs[", i, "]").c_str(), outs[i], accepted_of(onepass::Types::data)).view));
  }
  for (std::size_t i = 0; i < lses.size(); ++i) {
    lse_views.push_back(
        kept.emplace_back(text("lses[", i, "]").c_str(), lses[i], accepted_of(onepass::Types::f32)).view);
  }
  const Argument to("out", out, accepted_of(onepass::Types::data), true),
      to_lse("lse", lse, accepted_of(onepass::Types::f32), true);
  unlocked(threads, stream, [&](const onepass::Launch& launch) {
    onepass::merge(out_views, lse_views, rows_last(to.view), to_lse.view, launch);
  });
}

void merge_lse(const std::vector<nb::object>& lses, nb::handle lse, int threads, std::uintptr_t stream) {
  std::vector<Argument> kept;
  std::vector<onepass::ConstTensor> views;
  kept.reserve(lses.size());
  for (std::size_t i = 0; i < lses.size(); ++i)
    views.push_back(kept.emplace_back(text("lses[", i, "]").c_str(), lses[i], accepted_of(onepass::Types::f32)).view);
  const Argument to("lse", lse, accepted_of(onepass::Types::f32), true);
  unlocked(threads, stream, [&](const onepass::Launch& launch) { onepass::merge_lse(views, to.view, launch); });
}

void append_kv(const nb::dict& o) {
  const onepass::CallersLayout layout(nb::cast<bool>(o["tokens_first"]),
                                      is_given(o, "page_table") || is_given(o, "slot_mapping"));
  Views<16> take(o);
  using enum onepass::Types;
  onepass::AppendTensors t;
  t.k_new = take("k_new", data), t.v_new = take("v_new", data);
  t.k = take("k", key_value, true), t.v = take("v", key_value, true);
  t.cache_seqlens = take("cache_seqlens", i32), t.page_table = take("page_table", i32);
  t.cu_seqlens_q = take("cu_seqlens_q", i32);
  t.slot_mapping = take("slot_mapping", index), t.positions = take("positions", index);
  t.cos = take("cos", data), t.sin = take("sin", data), t.cos_sin_cache = take("cos_sin_cache", data);
  t.k_descale = take("k_descale", f32), t.v_descale = take("v_descale", f32);
  t.q = take("q", data), t.q_out = take("q_out", data, true);
  const bool interleaved = nb::cast<bool>(o["interleaved"]);
  unlocked(o, [&](const onepass::Launch& launch) { onepass::append_kv(t, interleaved, launch); });
}

// call: the tensors by the names of their roles (None: not given), scale, log, threads, stream.
void softmax(const nb::dict& o) {
  Views<7> take(o);
  using enum onepass::Types;
  const bool backward = !nb::handle(o["dy"]).is_none();
  const Tensor &x = take("x", data), &y = take("y", data, !backward), &lse = take("lse", f32, true),
               &row_lse = take("row_lse", f32), &mask = take("bool_mask", boolean), &dy = take("dy", data),
               &dx = take("dx", data, true);
  const onepass::SoftmaxOptions options{nb::cast<double>(o["scale"]), nb::cast<bool>(o["log"])};
  unlocked(o, [&](const onepass::Launch& launch) {
    if (backward)
      onepass::softmax_backward(y, dy, dx, options, launch);
    else if (row_lse.given())
      onepass::softmax_piece(x, row_lse, y, options, mask, launch);
    else
      onepass::softmax(x, y, lse, options, mask, launch);
  });
}

// call: the tensors by the names of their roles (None: not given), tokens_first, hadamard, seed, threads, stream.
void quantize(const nb::dict& o) {
  using enum onepass::Types;
  const bool tokens_first = nb::cast<bool>(o["tokens_first"]);
  const onepass::CallersLayout layout(tokens_first, false);
  const auto rows = [&](const char* name, Tensor t) {
    if (tokens_first) onepass::widen(t, onepass::kMaxRank);
    return onepass::turned(name, t);
  };
  const Argument x("x", o["x"], accepted_of(data)), y("y", o["y"], "float8_e4m3fn", true),
      descale("descale", o["descale"], accepted_of(f32), true), mean("mean", o["mean"], accepted_of(f32), true);
  const onepass::QuantizeOptions options{nb::cast<bool>(o["hadamard"]), nb::cast<std::uint64_t>(o["seed"])};
  unlocked(o, [&](const onepass::Launch& launch) {
    onepass::quantize(rows("x", x.view), rows("y", y.view), descale.view, mean.view, options, launch);
  });
}

// A flat GEMM, or a linear: `multiply`.
template <auto multiply>
void product(nb::handle x, nb::handle w, nb::handle y, nb::handle column_bias, int threads, std::uintptr_t stream) {
  const char* const accepted = accepted_of(onepass::Types::data);
  const Argument from("x", x, accepted), weights("w", w, accepted), to("y", y, accepted, true),
      columns("column_bias", column_bias, accepted);
  unlocked(threads, stream,
           [&](const onepass::Launch& launch) { multiply(from.view, weights.view, to.view, columns.view, launch); });
}

// (name, kind, attention's, attention_backward's) of each option. The band's are mask, align_offset and window.
nb::list attention_options() {
  nb::list all;
  onepass::for_each_option([&](const onepass::OptionRow& row, auto option) {
    all.append(nb::make_tuple(row.name, onepass::python::kind_of<onepass::OptionType<decltype(option)>>(), row.forward,
                              row.backward));
  });
  return all;
}

// Waits for everything on the legacy default stream of a device.
void synchronize(int device) {
  const nb::gil_scoped_release unlocked;
  const onepass::cuda::ContextScope scope(onepass::cuda::device_facts(device));
  onepass::cuda::check_cuda(onepass::cuda::driver()->stream_synchronize(nullptr), "cuStreamSynchronize");
}

// NVRTC's version, or a sentence that says why there is none; opened if it has not been.
std::pair<std::string, std::string> nvrtc() {
  std::string why;
  const onepass::cuda::Nvrtc* api = onepass::cuda::nvrtc(&why);
  return {api ? text(api->major, ".", api->minor) : std::string(), why};
}

// An array of the extension's own, for kinds that can only import: jax and others take it by DLPack, without a copy.
// fill: every element of fp32; 0 for the other dtypes.
nb::object empty(const std::vector<std::size_t>& shape, const std::string& dtype, std::optional<float> fill) {
  const DType type = dtype == "bfloat16" ? DType::bf16 : dtype == "float16" ? DType::f16 : DType::f32;
  std::size_t elements = 1;
  for (std::size_t n : shape) elements *= n;
  const std::size_t bytes = elements * onepass::size_of(type);
  void* data = ::operator new(bytes, std::align_val_t{64});
  if (fill && type == DType::f32) std::fill_n(static_cast<float*>(data), elements, *fill);
  if (fill && type != DType::f32) std::memset(data, 0, bytes);
  const nb::capsule owner(data, [](void* p) noexcept { ::operator delete(p, std::align_val_t{64}); });
  using Code = nb::dlpack::dtype_code;
  const nb::dlpack::dtype dlpack{static_cast<std::uint8_t>(type == DType::bf16 ? Code::Bfloat : Code::Float),
                                 static_cast<std::uint8_t>(onepass::size_of(type) * 8), 1};
  return nb::cast(
      nb::ndarray<nb::array_api>(data, shape.size(), shape.data(), owner, nullptr, dlpack, nb::device::cpu::value));
}

}  // namespace

NB_MODULE(_onepass, m) {
  nb::set_leak_warnings(false);  // plans of context parallelism are kept until the process ends
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Error& e) {
      PyErr_SetString(exception_type(e.code()), e.what());
    }
  });
  m.attr("__version__") = std::string(onepass::version());
  m.def("attention", &attention, "options"_a);
  m.def("attention_backward", &attention, "options"_a);
  m.def("explain", &explain, "options"_a, "target"_a = "");
  m.def("check", &check, "options"_a);
  m.def("explain_line", &explain_line, "line"_a, "target"_a = "");
  m.def("merge", &merge, "outs"_a, "lses"_a, "out"_a, "lse"_a, "threads"_a, "stream"_a);
  m.def("merge_lse", &merge_lse, "lses"_a, "lse"_a, "threads"_a, "stream"_a);
  m.def("append_kv", &append_kv, "call"_a);
  m.def("softmax", &softmax, "call"_a);
  m.def("quantize", &quantize, "call"_a);
  m.def("attention_fp8", &attention_fp8, "options"_a, "fp8"_a);
  m.def("explain_fp8", &explain_fp8, "options"_a, "fp8"_a, "target"_a = "");
  m.def("flat_gemm", &product<&onepass::flat_gemm>, "x"_a, "w"_a, "y"_a, "column_bias"_a.none(), "threads"_a,
        "stream"_a);
  m.def("linear", &product<&onepass::linear>, "x"_a, "w"_a, "y"_a, "column_bias"_a.none(), "threads"_a, "stream"_a);
  m.def(
      "foreign_word", [](const std::string& name) { return onepass::foreign_word(name, onepass::Dialect::python); },
      "name"_a);
  m.def("attention_options", &attention_options);
  m.def("synchronize", &synchronize, "device"_a);
  m.def("offer_nvrtc", &onepass::cuda::offer_nvrtc, "paths"_a);
  m.def("nvrtc", &nvrtc);
  m.def("empty", &empty, "shape"_a, "dtype"_a, "fill"_a.none());
  onepass::python::add_block_mask(m);
  onepass::python::add_context_parallel(m);
  onepass::python::add_jax(m);
  onepass::python::add_torch(m);
#if defined(ONEPASS_COMMAND)
  onepass::python::add_command(m);
#endif
}
