// Threads of the C++ library behind the executor hook: make_executor's if ONEPASS_TBB is off.
#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fork.hpp"
#include "cpu/threads/executors.hpp"

namespace onepass::cpu {
namespace {

// One loop of one caller. Threads draw task numbers from one counter, so lower numbers start earlier.
struct Loop {
  const std::int64_t tasks;
  void (*const body)(void*, std::int64_t, int);
  void* const context;
  const int workers;  // of all, those that take part
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure{};

  void run(int worker) noexcept {
    if (worker >= workers) return;
    try {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(context, i, worker);
    } catch (...) {  // the first failure is the call's; tasks that have not begun are left out
      if (!failed.exchange(true)) failure = std::current_exception();
      next.store(tasks, std::memory_order_relaxed);
    }
  }
};

// Waits until `changed`, awake at first: a thread that sleeps takes 10 to 50 us to wake, as long as a short call takes.
template <class T, class Changed>
void wait_until(const std::atomic<T>& at, const Changed& changed) {
  constexpr int kAwake = 1000;  // looks, 20 to 50 us
  for (int i = 0; i < kAwake; ++i) {
    if (changed(at.load(std::memory_order_acquire))) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  for (T now; !changed(now = at.load(std::memory_order_acquire));) at.wait(now, std::memory_order_acquire);
}

// workers - 1 threads, which sleep between loops, and the caller, worker 0. Callers take turns. In a child of fork()
// only the caller is left.
class Threads final : public Executor {
 public:
  explicit Threads(int threads) : workers_(threads > 0 ? threads : usable_cpus()) {
    threads_->reserve(static_cast<std::size_t>(workers_ - 1));
    try {
      for (int worker = 1; worker < workers_; ++worker) threads_->emplace_back([this, worker] { serve(worker); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Threads() override {
    if (forked())
      static_cast<void>(threads_.release());  // the parent's: neither joined nor detached here
    else
      stop();
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  int workers() const override { return workers_; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    Loop loop{.tasks = tasks,
              .body = body,
              .context = context,
              .workers = static_cast<int>(std::min<std::int64_t>(workers_, tasks))};
    if (loop.workers <= 1 || forked()) {
      for (std::int64_t i = 0; i < tasks; ++i) body(context, i, 0);
      return;
    }
    {
      const std::lock_guard turn(turns_);
      begin(&loop);
      loop.run(0);
      wait_until(running_, [](int left) { return left == 0; });
    }
    if (loop.failure) std::rethrow_exception(loop.failure);
  }

 private:
  // Null: threads end.
  void begin(Loop* loop) {
    loop_ = loop;
    running_.store(static_cast<int>(threads_->size()), std::memory_order_relaxed);
    started_.fetch_add(1, std::memory_order_release);
    started_.notify_all();
  }
  void stop() {
    begin(nullptr);
    for (std::thread& thread : *threads_) thread.join();
  }
  void serve(int worker) {
    for (unsigned seen = 0;; ++seen) {
      wait_until(started_, [seen](unsigned now) { return now != seen; });
      Loop* const loop = loop_;
      if (loop == nullptr) return;
      loop->run(worker);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
  }
  bool forked() const { return fork_count() != made_at_; }

  const int made_at_ = fork_count();
  const int workers_;
  std::mutex turns_;
  Loop* loop_ = nullptr;
  std::atomic<int> running_{0};       // threads that have not ended the loop
  std::atomic<unsigned> started_{0};  // loops so far
  std::unique_ptr<std::vector<std::thread>> threads_ = std::make_unique<std::vector<std::thread>>();
};

}  // namespace

std::shared_ptr<Executor> thread_executor(int threads) { return std::make_shared<Threads>(threads); }

}  // namespace onepass::cpu
