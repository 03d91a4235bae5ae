// The C ABI of attention: calls, problems and plans.
#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

#include "base/shown.hpp"
#include "base/text.hpp"
#include "interfaces/c_guarded.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/attention/options.hpp"
#include "problem/grammar/mismatch.hpp"

namespace onepass::interfaces {
namespace {

void copy_text(const std::string& source, char* buffer, std::size_t capacity, std::size_t* length) {
  if (capacity > 0) {
    const std::size_t n = std::min(source.size(), capacity - 1);
    std::memcpy(&given("buffer", buffer), source.data(), n);
    buffer[n] = '\0';
  }
  if (length) *length = source.size();
}

// run() takes tensors only; the options of a C call say again what is computed, and must say the same.
void check_described(const Problem& p, std::string_view plan, const Call& call) {
  Attention a = call.attention;
  for (const auto& [name, bound, used, planned] :
       {std::tuple{"max_seqlen_q", a.max_seqlen_q, p.varlen, p.seq_q},
        {"max_seqlen_k", a.max_seqlen_k, p.packed_k() || p.paged(), p.seq_k}})
    want(bound == 0 || (used && bound == planned), ErrorCode::bad_value, "options.", name, " must be 0",
         used ? text(" or the plan's ", planned) : "", " (got ", bound, ")");
  want(call.implementation.empty() || call.implementation == plan, ErrorCode::bad_value,
       "options.implementation must be NULL or the plan's ", plan, " (got ", shown(call.implementation), ")");
  const auto same = [&](const OptionRow& row) {
    return !row.word || !takes_option(row, p.op) || same_option(row, a, p);
  };
  if (std::ranges::all_of(kAttentionOptions, same)) return;
  bound_lengths(a, p);
  throw Error(ErrorCode::bad_shape, mismatch(p, problem_of(call.tensors, a)));
}

}  // namespace
}  // namespace onepass::interfaces

using namespace onepass;
using namespace onepass::interfaces;

extern "C" {

onepass_code onepass_options_init(onepass_options* options, size_t size) {
  return guarded([&] {
    onepass_options defaults{};
    defaults.window_left = defaults.window_right = -1;
    set_defaults("options", options, size, defaults);
  });
}

onepass_code onepass_attention(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v,
                               const onepass_tensor* out, const onepass_options* options) {
  return guarded([&] {
    const Call call = call_from(q, k, v, out, options);
    attention(call.tensors, call.attention, call.launch, call.implementation);
  });
}

onepass_code onepass_attention_backward(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v,
                                        const onepass_tensor* out, const onepass_options* options) {
  return guarded([&] {
    const Call call = call_from(q, k, v, out, options);
    attention_backward(call.tensors, call.attention, call.launch, call.implementation);
  });
}

onepass_code onepass_jvp(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v,
                         const onepass_tensor* out, const onepass_options* options) {
  return guarded([&] {
    const Call call = call_from(q, k, v, out, options);
    jvp(call.tensors, call.attention, call.launch, call.implementation);
  });
}

onepass_code onepass_backward_jvp(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v,
                                  const onepass_tensor* out, const onepass_options* options) {
  return guarded([&] {
    const Call call = call_from(q, k, v, out, options);
    backward_jvp(call.tensors, call.attention, call.launch, call.implementation);
  });
}

onepass_code onepass_attention_fp8(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v,
                                   const onepass_tensor* out, const onepass_options* options, int32_t flags,
                                   uint64_t seed) {
  return guarded([&] {
    constexpr int32_t kFlags = ONEPASS_FP8_BY_BLOCK | ONEPASS_FP8_NO_HADAMARD | ONEPASS_FP8_CENTER;
    want((flags & ~kFlags) == 0, ErrorCode::bad_value, "flags must be a sum of ONEPASS_FP8_ values (got ", flags, ")");
    const Call call = call_from(q, k, v, out, options);
    const Fp8Options how{.by_block = (flags & ONEPASS_FP8_BY_BLOCK) != 0,
                         .hadamard = (flags & ONEPASS_FP8_NO_HADAMARD) == 0,
                         .center = (flags & ONEPASS_FP8_CENTER) != 0,
                         .seed = seed};
    attention_fp8(call.tensors, call.attention, how, call.launch, call.implementation);
  });
}

onepass_code onepass_cascade(const onepass_tensor* q, size_t count, const onepass_level* levels,
                             const onepass_tensor* out, const onepass_tensor* lse, const onepass_tensor* sinks,
                             onepass_executor* executor, void* stream) {
  return onepass_cascade_with_max(q, count, levels, out, lse, nullptr, sinks, executor, stream);
}
onepass_code onepass_cascade_with_max(const onepass_tensor* q, size_t count, const onepass_level* levels,
                                      const onepass_tensor* out, const onepass_tensor* lse,
                                      const onepass_tensor* row_max, const onepass_tensor* sinks,
                                      onepass_executor* executor, void* stream) {
  return guarded([&] {
    const Levels l = levels_from(q, count, levels, out);
    cascade(tensor_from("q", q), l.all, tensor_from("out", out), optional_tensor_from("lse", lse),
            optional_tensor_from("sinks", sinks), launch_on(executor, stream),
            optional_tensor_from("row_max", row_max));
  });
}

onepass_code onepass_problem_parse(const char* line, onepass_problem** problem) {
  return guarded([&] {
    auto& result = given("problem", problem);
    result = new onepass_problem{parse_problem(&given("line", line))};
  });
}
onepass_code onepass_problem_make(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v,
                                  const onepass_tensor* out, const onepass_options* options,
                                  onepass_problem** problem) {
  return guarded([&] {
    auto& result = given("problem", problem);
    const Call call = call_from(q, k, v, out, options);
    result = new onepass_problem{problem_of(call.tensors, call.attention)};
  });
}
void onepass_problem_destroy(onepass_problem* problem) { delete problem; }

onepass_code onepass_problem_print(const onepass_problem* problem, char* buffer, size_t capacity, size_t* length) {
  return guarded([&] { copy_text(to_string(given("problem", problem).problem), buffer, capacity, length); });
}
onepass_code onepass_explain(const onepass_problem* problem, char* buffer, size_t capacity, size_t* length) {
  return guarded([&] { copy_text(explain(given("problem", problem).problem), buffer, capacity, length); });
}

onepass_code onepass_plan_create(const onepass_problem* problem, const char* implementation,
                                 const onepass_executor* executor, onepass_plan** plan) {
  return guarded([&] {
    auto& result = given("plan", plan);
    result = new onepass_plan{make_plan(given("problem", problem).problem, implementation ? implementation : "",
                                        executor ? executor->executor.get() : nullptr)};
  });
}
onepass_code onepass_plan_prepare(const onepass_plan* plan) {
  return guarded([&] { prepare(given("plan", plan).plan); });
}
void onepass_plan_destroy(onepass_plan* plan) { delete plan; }
size_t onepass_plan_workspace_bytes(const onepass_plan* plan) { return plan ? plan->plan.workspace_bytes() : 0; }
const char* onepass_plan_implementation(const onepass_plan* plan) { return plan ? plan->plan.name().data() : ""; }

onepass_code onepass_plan_run(const onepass_plan* plan, const onepass_tensor* q, const onepass_tensor* k,
                              const onepass_tensor* v, const onepass_tensor* out, const onepass_options* options,
                              void* workspace, size_t workspace_bytes) {
  return guarded([&] {
    const Plan& p = given("plan", plan).plan;
    Call call = call_from(q, k, v, out, options);
    check_described(problem_of(p), p.name(), call);
    call.launch.workspace = {static_cast<std::byte*>(workspace), workspace_bytes};
    run(p, call.tensors, call.launch);
  });
}

}  // extern "C"
