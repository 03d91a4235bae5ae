// A loop of tasks that the threads of another library's pool run, for executors on such pools.
#pragma once
#include <atomic>
#include <cstdint>

namespace onepass {

// Every thread that calls run() takes part, as a worker of its own. It draws tasks until none are left.
class TaskLoop {
 public:
  TaskLoop(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context)
      : tasks_(tasks), body_(body), context_(context) {}
  void run() {
    const int worker = worker_.fetch_add(1, std::memory_order_relaxed);
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) body_(context_, i, worker);
  }

 private:
  const std::int64_t tasks_;
  void (*const body_)(void*, std::int64_t, int);
  void* const context_;
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> worker_{0};
};

}  // namespace onepass
