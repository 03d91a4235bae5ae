// The C ABI's version, errors, tensors and executors.
#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "base/text.hpp"
#include "interfaces/c_guarded.hpp"
#include "onepass/version.hpp"
#include "plan/guarded_executor.hpp"

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

onepass_code failed(onepass_code code, const char* sentence) noexcept {
  try {
    last_error() = sentence;
  } catch (...) {
    last_error().clear();  // no memory even for the sentence: the code has to do
  }
  return code;
}

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

}  // extern "C"
