// The C ABI: every call converts, calls the C++ interface, and turns what is thrown into a code and a sentence.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <tuple>
#include <vector>

#include "base/guarded_executor.hpp"
#include "base/shown.hpp"
#include "base/text.hpp"
#include "interfaces/c_convert.hpp"
#include "onepass/version.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/attention/options.hpp"
#include "problem/grammar/mismatch.hpp"

namespace onepass::interfaces {
namespace {

constexpr const char* kCodeNames[] = {"ok",          "bad_shape",     "bad_stride", "bad_dtype",
                                      "bad_device",  "bad_value",     "bad_text",   "bad_file",
                                      "unsupported", "out_of_memory", "internal",   "device_failure"};
static_assert(static_cast<int>(ErrorCode::bad_shape) == ONEPASS_BAD_SHAPE &&
              static_cast<int>(ErrorCode::bad_stride) == ONEPASS_BAD_STRIDE &&
              static_cast<int>(ErrorCode::bad_dtype) == ONEPASS_BAD_DTYPE &&
              static_cast<int>(ErrorCode::bad_device) == ONEPASS_BAD_DEVICE &&
              static_cast<int>(ErrorCode::bad_value) == ONEPASS_BAD_VALUE &&
              static_cast<int>(ErrorCode::bad_text) == ONEPASS_BAD_TEXT &&
              static_cast<int>(ErrorCode::bad_file) == ONEPASS_BAD_FILE &&
              static_cast<int>(ErrorCode::unsupported) == ONEPASS_UNSUPPORTED &&
              static_cast<int>(ErrorCode::out_of_memory) == ONEPASS_OUT_OF_MEMORY &&
              static_cast<int>(ErrorCode::internal) == ONEPASS_INTERNAL &&
              static_cast<int>(ErrorCode::device_failure) == ONEPASS_DEVICE_FAILURE);
static_assert(static_cast<int>(DType::f32) == ONEPASS_F32 && static_cast<int>(DType::f16) == ONEPASS_F16 &&
              static_cast<int>(DType::bf16) == ONEPASS_BF16 && static_cast<int>(DType::f8e4m3) == ONEPASS_F8E4M3 &&
              static_cast<int>(DType::boolean) == ONEPASS_BOOL && static_cast<int>(DType::i32) == ONEPASS_I32 &&
              static_cast<int>(DType::i64) == ONEPASS_I64);

std::string& last_error() {
  thread_local std::string sentence;
  return sentence;
}

onepass_code failed(onepass_code code, const char* sentence) noexcept {
  try {
    last_error() = sentence;
  } catch (...) {
    last_error().clear();  // no memory even for the sentence: the code has to do
  }
  return code;
}

template <class F>
onepass_code guarded(F&& call) noexcept {
  try {
    call();
    return ONEPASS_OK;
  } catch (const Error& e) {
    return failed(static_cast<onepass_code>(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return failed(ONEPASS_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return failed(ONEPASS_INTERNAL, e.what());
  } catch (...) {
    return failed(ONEPASS_INTERNAL, "an unknown exception");
  }
}

void copy_text(const std::string& source, char* buffer, std::size_t capacity, std::size_t* length) {
  if (capacity > 0) {
    const std::size_t n = std::min(source.size(), capacity - 1);
    std::memcpy(&given("buffer", buffer), source.data(), n);
    buffer[n] = '\0';
  }
  if (length) *length = source.size();
}

// Into a struct of the caller's size; fields that this library does not know become 0.
template <class Struct>
void set_defaults(const char* name, Struct* to, std::size_t size, Struct defaults) {
  want(size >= sizeof defaults.size && size % alignof(Struct) == 0, ErrorCode::bad_value,
       "size must be sizeof(onepass_", name, ") (got ", size, ")");
  defaults.size = size;
  std::memset(&given(name, to), 0, size);
  std::memcpy(to, &defaults, std::min(size, sizeof defaults));
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
    return !row.word || !takes_option(row, is_backward(p.op)) || same_option(row, a, p);
  };
  if (std::ranges::all_of(kAttentionOptions, same)) return;
  bound_lengths(a, p);
  throw Error(ErrorCode::bad_shape, mismatch(p, problem_of(call.tensors, a)));
}

// The host's threads. An exception of a task must not cross the host's C frames: it waits until they are gone.
class Wrapped final : public Executor {
 public:
  Wrapped(int workers, onepass_parallel_for function, void* user)
      : workers_(workers), parallel_for_(function), user_(user) {}
  int workers() const override { return workers_; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    struct Call {
      void (*body)(void*, std::int64_t, int);
      void* context;
      std::int64_t tasks;
      std::atomic<std::int64_t> done{0};
      std::mutex lock;
      std::exception_ptr thrown;
    } call{body, context, tasks, {}, {}, {}};
    parallel_for_(
        user_, tasks,
        [](void* p, std::int64_t task, std::int32_t worker) {
          auto& c = *static_cast<Call*>(p);
          try {
            c.body(c.context, task, worker);
          } catch (...) {
            const std::lock_guard lock(c.lock);
            c.thrown = std::current_exception();
          }
          if (task >= 0 && task < c.tasks) c.done.fetch_add(1, std::memory_order_release);  // others: GuardedExecutor
        },
        &call);
    if (call.thrown) std::rethrow_exception(call.thrown);
    if (call.done.load(std::memory_order_acquire) != tasks) {
      throw std::runtime_error(
          text("the executor's parallel_for must run all ", tasks, " tasks (got ", call.done.load(), ")"));
    }
  }

 private:
  int workers_;
  onepass_parallel_for parallel_for_;
  void* user_;
};

}  // namespace
}  // namespace onepass::interfaces

using namespace onepass;
using namespace onepass::interfaces;

extern "C" {

const char* onepass_version(void) { return onepass::version().data(); }
const char* onepass_last_error(void) { return last_error().c_str(); }
const char* onepass_code_name(int32_t code) {
  const auto at = static_cast<std::size_t>(static_cast<std::uint32_t>(code));
  return at < std::size(kCodeNames) ? kCodeNames[at] : "unknown";
}

onepass_code onepass_tensor_init(onepass_tensor* tensor, const void* data, int32_t dtype, int32_t rank,
                                 const int64_t* shape) {
  return guarded([&] {
    onepass_tensor t{const_cast<void*>(data), dtype, rank, {1, 1, 1, 1}, {0, 0, 0, 0}, ONEPASS_CPU, 0};
    tensor_from("tensor", &t);  // rank and dtype
    std::int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      t.shape[i] = (&given("shape", shape))[i];
      t.stride[i] = step;
      if (__builtin_mul_overflow(step, std::max<std::int64_t>(t.shape[i], 1), &step)) {
        throw Error(ErrorCode::bad_shape, "tensor must have at most 2^63 elements");
      }
    }
    given("tensor", tensor) = t;
  });
}

onepass_code onepass_executor_create(int32_t threads, onepass_executor** executor) {
  return guarded([&] {
    if (threads < 0 || threads > 4096)
      throw Error(ErrorCode::bad_value, text("threads must be 0 (all) to 4096 (got ", threads, ")"));
    auto& result = given("executor", executor);
    result = new onepass_executor{make_executor(threads)};
  });
}
onepass_code onepass_executor_wrap(int32_t workers, onepass_parallel_for parallel_for, void* user,
                                   onepass_executor** executor) {
  return guarded([&] {
    if (!parallel_for) throw Error(ErrorCode::bad_value, "parallel_for must not be NULL");
    auto& result = given("executor", executor);
    auto wrapped = std::make_shared<Wrapped>(workers, parallel_for, user);
    workers_of(*wrapped);
    result = new onepass_executor{std::move(wrapped)};
  });
}
int32_t onepass_executor_workers(const onepass_executor* executor) {
  return executor ? executor->executor->workers() : 0;
}
void onepass_executor_destroy(onepass_executor* executor) { delete executor; }

onepass_code onepass_options_init(onepass_options* options, size_t size) {
  return guarded([&] {
    onepass_options defaults{};
    defaults.window_left = defaults.window_right = -1;
    set_defaults("options", options, size, defaults);
  });
}
onepass_code onepass_append_init(onepass_append* append, size_t size) {
  return guarded([&] { set_defaults("append", append, size, onepass_append{}); });
}
onepass_code onepass_softmax_init(onepass_softmax* softmax, size_t size) {
  return guarded([&] {
    onepass_softmax defaults{};
    defaults.scale = 1;
    set_defaults("softmax", softmax, size, defaults);
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

onepass_code onepass_merge(size_t count, const onepass_tensor* outs, const onepass_tensor* lses,
                           const onepass_tensor* out, const onepass_tensor* lse, onepass_executor* executor) {
  return onepass_merge_on_stream(count, outs, lses, out, lse, executor, nullptr);
}
onepass_code onepass_merge_on_stream(size_t count, const onepass_tensor* outs, const onepass_tensor* lses,
                                     const onepass_tensor* out, const onepass_tensor* lse, onepass_executor* executor,
                                     void* stream) {
  return guarded([&] {
    std::vector<ConstTensor> o, l;
    for (size_t i = 0; i < count; ++i) {
      o.push_back(tensor_from(text("outs[", i, "]").c_str(), &given("outs", outs) + i));
      l.push_back(tensor_from(text("lses[", i, "]").c_str(), &given("lses", lses) + i));
    }
    onepass::merge(o, l, tensor_from("out", out), optional_tensor_from("lse", lse),
                   {.stream = stream, .executor = executor ? executor->executor.get() : nullptr});
  });
}

onepass_code onepass_cascade(const onepass_tensor* q, size_t count, const onepass_level* levels,
                             const onepass_tensor* out, const onepass_tensor* lse, const onepass_tensor* sinks,
                             onepass_executor* executor, void* stream) {
  return guarded([&] {
    const Levels l = levels_from(q, count, levels, out);
    cascade(tensor_from("q", q), l.all, tensor_from("out", out), optional_tensor_from("lse", lse),
            optional_tensor_from("sinks", sinks),
            {.stream = stream, .executor = executor ? executor->executor.get() : nullptr});
  });
}

onepass_code onepass_append_kv(const onepass_append* append) {
  return guarded([&] {
    const AppendCall call = append_from(given("append", append));
    append_kv(call.tensors, call.interleaved, call.launch);
  });
}

onepass_code onepass_quantize_init(onepass_quantize* quantize, size_t size) {
  return guarded([&] { set_defaults("quantize", quantize, size, onepass_quantize{}); });
}
onepass_code onepass_quantize_rows(const onepass_quantize* quantize) {
  return guarded([&] {
    const QuantizeCall c = quantize_from(given("quantize", quantize));
    onepass::quantize(c.x, c.y, c.descale, c.mean, c.options, c.launch);
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

onepass_code onepass_softmax_forward(const onepass_softmax* softmax) {
  return guarded([&] {
    const SoftmaxCall c = softmax_from(given("softmax", softmax));
    want(!c.dy.given() && !c.dx.given(), ErrorCode::bad_value,
         "onepass_softmax_forward does not accept dy or dx; onepass_softmax_backward does");
    if (!c.row_lse.given()) return onepass::softmax(c.x, c.y, c.lse, c.options, c.bool_mask, c.launch);
    want(!c.lse.given(), ErrorCode::bad_value, "row_lse requires y and does not support lse");
    softmax_piece(c.x, c.row_lse, c.y, c.options, c.bool_mask, c.launch);
  });
}
onepass_code onepass_softmax_backward(const onepass_softmax* softmax) {
  return guarded([&] {
    const SoftmaxCall c = softmax_from(given("softmax", softmax));
    want(!c.x.given() && !c.lse.given() && !c.row_lse.given() && !c.bool_mask.given(), ErrorCode::bad_value,
         "onepass_softmax_backward does not accept x, lse, row_lse or bool_mask");
    softmax_backward(c.y, c.dy, c.dx, c.options, c.launch);
  });
}
onepass_code onepass_merge_lse(size_t count, const onepass_tensor* lses, const onepass_tensor* lse,
                               onepass_executor* executor, void* stream) {
  return guarded([&] {
    std::vector<ConstTensor> parts;
    for (size_t i = 0; i < count; ++i)
      parts.push_back(tensor_from(text("lses[", i, "]").c_str(), &given("lses", lses) + i));
    merge_lse(parts, tensor_from("lse", lse),
              {.stream = stream, .executor = executor ? executor->executor.get() : nullptr});
  });
}

onepass_code onepass_flat_gemm(const onepass_tensor* x, const onepass_tensor* w, const onepass_tensor* y,
                               const onepass_tensor* column_bias, onepass_executor* executor, void* stream) {
  return guarded([&] {
    flat_gemm(tensor_from("x", x), tensor_from("w", w), tensor_from("y", y),
              optional_tensor_from("column_bias", column_bias),
              {.stream = stream, .executor = executor ? executor->executor.get() : nullptr});
  });
}

onepass_code onepass_linear(const onepass_tensor* x, const onepass_tensor* w, const onepass_tensor* y,
                            const onepass_tensor* column_bias, onepass_executor* executor, void* stream) {
  return guarded([&] {
    linear(tensor_from("x", x), tensor_from("w", w), tensor_from("y", y),
           optional_tensor_from("column_bias", column_bias),
           {.stream = stream, .executor = executor ? executor->executor.get() : nullptr});
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
