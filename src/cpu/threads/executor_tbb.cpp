// oneTBB behind the executor hook (ONEPASS_TBB=ON, the default).
#include <algorithm>
#include <atomic>
#include <memory>

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include "base/fork.hpp"
#include "cpu/threads/executors.hpp"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ONEPASS_TSAN
#include <sanitizer/tsan_interface.h>
#endif
#endif

namespace onepass::cpu {
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

// Workers draw task numbers from one counter, so lower numbers start earlier whatever TBB does. A worker number is the
// index of the drawing loop, not of a TBB slot: slots may be re-entered, loops may not.
//
// TBB does not survive fork(): its threads are the parent's, and an arena in which one of them worked has no place for
// another. In a child the caller works alone, and the arena is left as it is: even its end would wait for a lock.
class Tbb final : public Executor {
 public:
  explicit Tbb(int threads)
      : workers_(threads > 0 ? threads : usable_cpus()),
        arena_(
            std::make_unique<oneapi::tbb::task_arena>(std::min(workers_, oneapi::tbb::info::default_concurrency()))) {
  }  // for more, TBB prints a warning
  ~Tbb() override {
    if (forked()) static_cast<void>(arena_.release());
  }
  Tbb(const Tbb&) = delete;
  Tbb& operator=(const Tbb&) = delete;
  int workers() const override { return workers_; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    const int loops = static_cast<int>(std::min<std::int64_t>(workers_, tasks));
    if (loops <= 1 || forked()) {
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
    arena_->execute([&]() ONEPASS_NOT_SEEN {  // perhaps by another thread
      after(call);
      oneapi::tbb::parallel_for(0, loops, 1, ordered, oneapi::tbb::simple_partitioner());
      before(tasks_done);
    });
    after(tasks_done);
  }

 private:
  bool forked() const { return fork_count() != made_at_; }

  const int made_at_ = fork_count();
  int workers_;
  std::unique_ptr<oneapi::tbb::task_arena> arena_;
};

// TBB's own locks and counts are lost with the arenas, once a process has used it and forks.
bool tbb_is_whole() {
  static constinit std::atomic<int> first_use{-1};
  const int now = fork_count();
  int before = -1;
  return first_use.compare_exchange_strong(before, now) || before == now;
}

}  // namespace

std::shared_ptr<Executor> tbb_executor(int threads) {
  if (!tbb_is_whole()) return std::shared_ptr<Executor>(&serial_executor(), [](Executor*) {});
  return std::make_shared<Tbb>(threads);
}

}  // namespace onepass::cpu
