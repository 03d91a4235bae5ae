// Calls of attention and its backward from the package's dict: arrays become views, options are walked by their table.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "argument.hpp"
#include "interfaces/executors.hpp"
#include "interrupt.hpp"
#include "item.hpp"
#include "onepass/onepass.hpp"
#include "option.hpp"
#include "parts.hpp"
#include "plan/compute.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/attention/options.hpp"
#include "problem/callers_layout.hpp"
#include "problem/roles.hpp"

namespace onepass::python {
namespace {

using namespace nb::literals;

// Everything of a call, as the package passes it: tensors by the names of their roles, and what is computed.
struct Call {
  Op op;
  CallersLayout layout;
  std::array<Argument, kRoles> arguments;
  std::vector<Argument> mod_buffers;
  Interruptible executor;
  Tensors tensors;
  CallOptions attention;
  Launch launch;
  std::string implementation;

  // The package says dout of a backward, tout of a jvp, both of a backward_jvp, and neither of another call.
  explicit Call(const nb::dict& o)
      : op(attention_op(o.contains("dout"), o.contains("tout"))),
        layout(item<bool>(o, "tokens_first"), is_given(o, "page_table")),
        executor(*executor_of(item<int>(o, "threads"))) {
    for_each_role(tensors, [&](const RoleRow& row, auto& tensor) {
      if (use_of(row, op) == Use::none) return;
      Argument& argument = arguments[static_cast<std::size_t>(row.role)];
      argument = Argument(row.name, item(o, row.name), accepted_of(row.types), writes(row, op));
      if (row.fit == Fit::broadcast) argument.broadcast_to_rank4();
      tensor = turned(row.name, argument.view);
    });
    for (const auto& [name, array] : item<std::vector<std::pair<std::string, nb::object>>>(o, "mod_buffers")) {
      const std::string called = "mod buffer " + name;
      mod_buffers.emplace_back(called.c_str(), array, kMod);
      tensors.mod_buffers.push_back({name, mod_buffers.back().view});
    }
    for_each_option([&](const OptionRow& row, auto option) {
      if (takes_option(row, op)) take(attention.*option, o, row.name);
    });
    implementation = item<std::string>(o, "implementation");
    launch.executor = &executor;
    launch.stream = reinterpret_cast<void*>(item<std::uintptr_t>(o, "stream"));
  }
};

// attention, attention_backward, jvp or backward_jvp, by the tensors that there are. workspace: None, or bytes ->
// (owner, address).
void attention(const nb::dict& options) {
  Call call(options);
  const auto planned = [&] {
    return plan::planned(call.op, call.tensors, call.attention, call.executor.workers(), call.implementation);
  };
  const nb::object allocate = options["workspace"];
  nb::object memory = nb::none();
  Plan plan;
  if (!allocate.is_none()) {
    plan = planned();
    if (const std::size_t bytes = plan.workspace_bytes()) {
      memory = allocate(bytes);
      call.launch.workspace = {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(memory[1])), bytes};
    }
  }
  {
    const nb::gil_scoped_release unlocked;
    plan::run_planned(plan.state() ? plan : planned(), call.tensors, call.launch);
  }
  call.executor.raise();
}

// q, k and v are quantized for it. fp8: how, a dict of Fp8Options' words.
Fp8Options fp8_options(const nb::dict& o) {
  return {.by_block = item<bool>(o, "by_block"),
          .hadamard = item<bool>(o, "hadamard"),
          .center = item<bool>(o, "center"),
          .seed = item<std::uint64_t>(o, "seed")};
}
void attention_fp8(const nb::dict& options, const nb::dict& fp8) {
  Call call(options);
  const Fp8Options how = fp8_options(fp8);
  {
    const nb::gil_scoped_release unlocked;
    onepass::attention_fp8(call.tensors, call.attention, how, call.launch, call.implementation);
  }
  call.executor.raise();
}
// target: "sm_90", or empty for this machine.
std::string explain_fp8(const nb::dict& options, const nb::dict& fp8, const std::string& target) {
  const Call call(options);
  const Fp8Options how = fp8_options(fp8);
  return target.empty() ? onepass::explain(call.tensors, call.attention, how)
                        : explain_for(target, call.tensors, call.attention, how);
}

std::string explain(const nb::dict& options, const std::string& target) {
  const Call call(options);
  const Problem problem = problem_of(call.tensors, call.attention);
  return target.empty() ? onepass::explain(problem, &call.tensors) : explain_for(target, problem);
}

std::string explain_line(const std::string& line, const std::string& target) {
  return target.empty() ? onepass::explain(line) : explain_for(target, line);
}

// Throws what attention would throw before it computes.
void check(const nb::dict& options) {
  const Call call(options);
  static_cast<void>(make_plan(problem_of(call.tensors, call.attention), call.implementation, call.launch.executor));
}

// (name, kind, attention's, attention_backward's) of each option. The band's are mask, align_offset and window.
nb::list attention_options() {
  nb::list all;
  for_each_option([&](const OptionRow& row, auto option) {
    all.append(nb::make_tuple(row.name, kind_of<OptionType<decltype(option)>>(), row.forward, row.backward));
  });
  return all;
}

// The words of each option that is one of two, the default first.
nb::dict attention_choices() {
  nb::dict all;
  for_each_option([&](const OptionRow& row, auto option) {
    using T = OptionType<decltype(option)>;
    if constexpr (Choice<T>)
      all[row.name] = nb::make_tuple(std::string(words_of(T{})[0]), std::string(words_of(T{})[1]));
  });
  return all;
}

// (name, causal, align) of each mask.
nb::list masks() {
  nb::list all;
  for (const NamedMask& mask : kNamedMasks)
    all.append(nb::make_tuple(std::string(mask.name), mask.causal, static_cast<int>(mask.align)));
  return all;
}

// (name, the dtype that a small array is converted to or "", attention's, attention_backward's, an input) of each
// tensor.
nb::list attention_tensors() {
  nb::list all;
  for (const RoleRow& row : kRoleTable) {
    if (row.forward == Use::none && row.backward == Use::none) continue;
    const char* const dtype = row.types == Types::f32 || row.types == Types::i32 ? accepted_of(row.types) : "";
    all.append(
        nb::make_tuple(row.name, dtype, row.forward != Use::none, row.backward != Use::none, row.input != nullptr));
  }
  return all;
}

}  // namespace

void add_attention(nb::module_& m) {
  m.def("attention", &attention, "options"_a);
  m.def("attention_backward", &attention, "options"_a);
  m.def("jvp", &attention, "options"_a);
  m.def("backward_jvp", &attention, "options"_a);
  m.def("explain", &explain, "options"_a, "target"_a = "");
  m.def("check", &check, "options"_a);
  m.def("explain_line", &explain_line, "line"_a, "target"_a = "");
  m.def("attention_fp8", &attention_fp8, "options"_a, "fp8"_a);
  m.def("explain_fp8", &explain_fp8, "options"_a, "fp8"_a, "target"_a = "");
  m.def("attention_options", &attention_options);
  m.def("attention_choices", &attention_choices);
  m.def("masks", &masks);
  m.def("attention_tensors", &attention_tensors);
}

}  // namespace onepass::python
