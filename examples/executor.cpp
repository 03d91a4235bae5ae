// Threads of your own: an executor that hands onepass's tasks to a pool. The bits do not depend on the threads.
#include <onepass/onepass.hpp>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace {
class Pool final : public onepass::Executor {
 public:
  explicit Pool(int workers) {
    for (int worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  }
  ~Pool() override { begin(true); }
  int workers() const override { return static_cast<int>(threads_.size()) + 1; }

  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    const std::lock_guard one_loop_at_a_time(loop_);
    tasks_ = tasks, body_ = body, context_ = context, next_ = 0, thrown_ = nullptr, busy_ = workers() - 1;
    begin(false);
    work(0);  // the calling thread is worker 0
    for (int busy; (busy = busy_) != 0;) busy_.wait(busy);
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  void begin(bool ending) {
    ending_ = ending;
    ++round_;
    round_.notify_all();
  }
  void serve(int worker) {
    for (int round = 0;;) {
      round_.wait(round);
      round = round_;
      if (ending_) return;
      work(worker);
      if (--busy_ == 0) busy_.notify_one();
    }
  }
  void work(int worker) {
    try {
      for (std::int64_t task; (task = next_++) < tasks_;) body_(context_, task, worker);
    } catch (...) {
      const std::lock_guard lock(thrown_lock_);
      thrown_ = std::current_exception();
      next_ = tasks_;  // the others begin no further task
    }
  }

  std::mutex loop_, thrown_lock_;
  std::atomic<int> round_ = 0, busy_ = 0;
  std::atomic<std::int64_t> next_ = 0;
  std::int64_t tasks_ = 0;
  void (*body_)(void*, std::int64_t, int) = nullptr;
  void* context_ = nullptr;
  std::exception_ptr thrown_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;  // last: joined before the rest is gone
};
}  // namespace

int main() {
  std::vector<float> x(4 * 300 * 64), out[2] = {x, x};
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) / 48 - 1;
  const auto qkv = onepass::view(std::as_const(x).data(), {1, 4, 300, 64});
  Pool pool(3);
  onepass::Executor* const executors[2] = {&pool, &onepass::serial_executor()};
  for (int i = 0; i < 2; ++i)
    onepass::attention({.q = qkv, .k = qkv, .v = qkv, .out = onepass::view(out[i].data(), {1, 4, 300, 64})}, {},
                       {.executor = executors[i]});
  const bool same = std::memcmp(out[0].data(), out[1].data(), x.size() * sizeof(float)) == 0;
  std::printf("3 threads and 1 thread give %s bits\n", same ? "the same" : "other");
  return same ? 0 : 1;
}
