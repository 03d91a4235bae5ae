// Calls of the other operators: merge, append, softmax, quantize, flat GEMM and linear.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "argument.hpp"
#include "base/text.hpp"
#include "interfaces/executors.hpp"
#include "interrupt.hpp"
#include "item.hpp"
#include "onepass/onepass.hpp"
#include "parts.hpp"
#include "problem/callers_layout.hpp"
#include "problem/checks/tensor_checks.hpp"

namespace onepass::python {
namespace {

using namespace nb::literals;

// f(launch) without the GIL; what a signal's handler has raised meanwhile comes out behind it.
template <class F>
void unlocked(int threads, std::uintptr_t stream, const F& f) {
  Interruptible executor(*executor_of(threads));
  {
    const nb::gil_scoped_release released;
    f(Launch{.stream = reinterpret_cast<void*>(stream), .executor = &executor});
  }
  executor.raise();
}
template <class F>
void unlocked(const nb::dict& call, const F& f) {
  unlocked(item<int>(call, "threads"), item<std::uintptr_t>(call, "stream"), f);
}

// The arrays that a call names, as views that live as long as this, heads before tokens. None: not given.
template <std::size_t kMaxViews>
class Views {
 public:
  explicit Views(const nb::dict& call) : call_(call) {}
  const Tensor& operator()(const char* name, Types types, bool writable = false) {
    Argument& argument = arguments_[taken_++];
    argument = Argument(name, item(call_, name), accepted_of(types), writable);
    return argument.view = turned(name, argument.view);
  }

 private:
  const nb::dict& call_;
  std::array<Argument, kMaxViews> arguments_;
  std::size_t taken_ = 0;
};

// The arrays of a list, such as lses[0], as views that live as long as this.
struct Parts {
  std::vector<Argument> arguments;
  std::vector<ConstTensor> views;
  Parts(const char* name, const std::vector<nb::object>& arrays, Types types) {
    for (std::size_t i = 0; i < arrays.size(); ++i)
      views.emplace_back(arguments.emplace_back(text(name, "[", i, "]").c_str(), arrays[i], accepted_of(types)).view);
  }
};

// Packed results, out [total, heads, dim] with lse [heads, total], are merged as [heads, total, dim].
template <class AnyTensor>
AnyTensor rows_last(const AnyTensor& out) {
  return out.rank == 3 ? out.permuted({1, 0, 2}) : out;
}

void merge(const std::vector<nb::object>& outs, const std::vector<nb::object>& lses, nb::handle out, nb::handle lse,
           int threads, std::uintptr_t stream) {
  Parts from("outs", outs, Types::data);
  const Parts from_lses("lses", lses, Types::f32);
  for (ConstTensor& part : from.views) part = rows_last(part);
  const Argument to("out", out, accepted_of(Types::data), true), to_lse("lse", lse, accepted_of(Types::f32), true);
  unlocked(threads, stream, [&](const Launch& launch) {
    onepass::merge(from.views, from_lses.views, rows_last(to.view), to_lse.view, launch);
  });
}

void merge_lse(const std::vector<nb::object>& lses, nb::handle lse, int threads, std::uintptr_t stream) {
  const Parts from("lses", lses, Types::f32);
  const Argument to("lse", lse, accepted_of(Types::f32), true);
  unlocked(threads, stream, [&](const Launch& launch) { onepass::merge_lse(from.views, to.view, launch); });
}

void append_kv(const nb::dict& o) {
  const CallersLayout layout(item<bool>(o, "tokens_first"), is_given(o, "page_table") || is_given(o, "slot_mapping"));
  Views<16> take(o);
  using enum Types;
  AppendTensors t;
  t.k_new = take("k_new", data), t.v_new = take("v_new", data);
  t.k = take("k", key_value, true), t.v = take("v", key_value, true);
  t.cache_seqlens = take("cache_seqlens", i32), t.page_table = take("page_table", i32);
  t.cu_seqlens_q = take("cu_seqlens_q", i32);
  t.slot_mapping = take("slot_mapping", index), t.positions = take("positions", index);
  t.cos = take("cos", data), t.sin = take("sin", data), t.cos_sin_cache = take("cos_sin_cache", data);
  t.k_descale = take("k_descale", f32), t.v_descale = take("v_descale", f32);
  t.q = take("q", data), t.q_out = take("q_out", data, true);
  const bool interleaved = item<bool>(o, "interleaved");
  unlocked(o, [&](const Launch& launch) { onepass::append_kv(t, interleaved, launch); });
}

// call: the tensors by the names of their roles (None: not given), scale, log, threads, stream.
void softmax(const nb::dict& o) {
  Views<7> take(o);
  using enum Types;
  const bool backward = !item(o, "dy").is_none();
  const Tensor &x = take("x", data), &y = take("y", data, !backward), &lse = take("lse", f32, true),
               &row_lse = take("row_lse", f32), &mask = take("bool_mask", boolean), &dy = take("dy", data),
               &dx = take("dx", data, true);
  const SoftmaxOptions options{item<double>(o, "scale"), item<bool>(o, "log")};
  unlocked(o, [&](const Launch& launch) {
    if (backward)
      softmax_backward(y, dy, dx, options, launch);
    else if (row_lse.given())
      softmax_piece(x, row_lse, y, options, mask, launch);
    else
      onepass::softmax(x, y, lse, options, mask, launch);
  });
}

// call: the tensors by the names of their roles (None: not given), tokens_first, hadamard, seed, threads, stream.
void quantize(const nb::dict& o) {
  using enum Types;
  const bool tokens_first = item<bool>(o, "tokens_first");
  const CallersLayout layout(tokens_first, false);
  const auto rows = [&](const char* name, Tensor t) {
    if (tokens_first) widen(t, kMaxRank);
    return turned(name, t);
  };
  const Argument x("x", item(o, "x"), accepted_of(data)), y("y", item(o, "y"), "float8_e4m3fn", true),
      descale("descale", item(o, "descale"), accepted_of(f32), true),
      mean("mean", item(o, "mean"), accepted_of(f32), true);
  const QuantizeOptions options{item<bool>(o, "hadamard"), item<std::uint64_t>(o, "seed")};
  unlocked(o, [&](const Launch& launch) {
    onepass::quantize(rows("x", x.view), rows("y", y.view), descale.view, mean.view, options, launch);
  });
}

// A flat GEMM, or a linear: `multiply`.
template <auto multiply>
void product(nb::handle x, nb::handle w, nb::handle y, nb::handle column_bias, int threads, std::uintptr_t stream) {
  const char* const accepted = accepted_of(Types::data);
  const Argument from("x", x, accepted), weights("w", w, accepted), to("y", y, accepted, true),
      columns("column_bias", column_bias, accepted);
  unlocked(threads, stream,
           [&](const Launch& launch) { multiply(from.view, weights.view, to.view, columns.view, launch); });
}

}  // namespace

void add_operators(nb::module_& m) {
  m.def("merge", &merge, "outs"_a, "lses"_a, "out"_a, "lse"_a, "threads"_a, "stream"_a);
  m.def("merge_lse", &merge_lse, "lses"_a, "lse"_a, "threads"_a, "stream"_a);
  m.def("append_kv", &append_kv, "call"_a);
  m.def("softmax", &softmax, "call"_a);
  m.def("quantize", &quantize, "call"_a);
  m.def("flat_gemm", &product<&flat_gemm>, "x"_a, "w"_a, "y"_a, "column_bias"_a.none(), "threads"_a, "stream"_a);
  m.def("linear", &product<&linear>, "x"_a, "w"_a, "y"_a, "column_bias"_a.none(), "threads"_a, "stream"_a);
}

}  // namespace onepass::python
