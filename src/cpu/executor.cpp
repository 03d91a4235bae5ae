// oneTBB behind the executor hook.
#include "onepass/executor.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ONEPASS_TSAN
#include <sanitizer/tsan_interface.h>
#endif
#endif

namespace onepass {
namespace {

// ThreadSanitizer does not see into TBB. It is told here what parallel_for promises: what came before the call comes
// before its tasks, and these before its return.
#ifdef ONEPASS_TSAN
void before(char& what) { __tsan_release(&what); }
void after(char& what) { __tsan_acquire(&what); }
#define ONEPASS_NOT_SEEN __attribute__((no_sanitize("thread")))
#else
void before(char&) {}
void after(char&) {}
#define ONEPASS_NOT_SEEN
#endif

class Serial final : public Executor {
 public:
  int workers() const override { return 1; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    for (std::int64_t i = 0; i < tasks; ++i) body(context, i, 0);
  }
};

// Workers draw task numbers from one counter, so lower numbers start earlier whatever TBB does. A worker number is the
// index of the drawing loop, not of a TBB slot: slots may be re-entered, loops may not.
class Tbb final : public Executor {
 public:
  explicit Tbb(int threads)
      : workers_(threads > 0 ? threads : oneapi::tbb::info::default_concurrency()),
        arena_(std::min(workers_, oneapi::tbb::info::default_concurrency())) {}  // for more, TBB prints a warning
  int workers() const override { return workers_; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    const int loops = static_cast<int>(std::min<std::int64_t>(workers_, tasks));
    if (loops <= 1) {
      for (std::int64_t i = 0; i < tasks; ++i) body(context, i, 0);
      return;
    }
    std::atomic<std::int64_t> next{0};
    const auto loop = [&](int worker) {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(context, i, worker);
    };
    char call = 0, tasks_done = 0;
    const auto ordered = [&](int worker) ONEPASS_NOT_SEEN {
      after(call);
      loop(worker);
      before(tasks_done);
    };
    before(call);
    arena_.execute([&]() ONEPASS_NOT_SEEN {  // perhaps by another thread
      after(call);
      oneapi::tbb::parallel_for(0, loops, 1, ordered, oneapi::tbb::simple_partitioner());
      before(tasks_done);
    });
    after(tasks_done);
  }

 private:
  int workers_;
  oneapi::tbb::task_arena arena_;
};

}  // namespace

std::shared_ptr<Executor> make_executor(int threads) { return std::make_shared<Tbb>(threads); }

Executor& default_executor() {
  static Tbb executor(0);
  return executor;
}

Executor& serial_executor() {
  static Serial executor;
  return executor;
}

}  // namespace onepass
