// A host's executor between calls and kernels: what it may get wrong ends in a sentence, not in another worker's
// scratch.
#pragma once
#include <atomic>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "onepass/executor.hpp"

namespace onepass {

// The number of workers, checked: scratch memory is booked for each.
inline int workers_of(const Executor& executor) {
  constexpr int kMax = 1 << 16;
  const int workers = executor.workers();
  if (workers < 1 || workers > kMax)
    throw Error(ErrorCode::bad_value, text("the executor must have 1 to ", kMax, " workers (got ", workers, ")"));
  return workers;
}

class GuardedExecutor final : public Executor {
 public:
  GuardedExecutor(Executor& host, int workers) : host_(host), workers_(workers) {}
  int workers() const override { return workers_; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    struct Call {
      void (*body)(void*, std::int64_t, int);
      void* context;
      std::int64_t tasks;
      int workers;
      std::atomic<bool> wrong = false;
      std::int64_t task = 0;  // of the first that was wrong
      int worker = 0;
    } call{body, context, tasks, workers_};
    host_.parallel_for(
        tasks,
        [](void* p, std::int64_t task, int worker) {
          auto& c = *static_cast<Call*>(p);
          if (task >= 0 && task < c.tasks && worker >= 0 && worker < c.workers) return c.body(c.context, task, worker);
          if (!c.wrong.exchange(true)) c.task = task, c.worker = worker;
        },
        &call);
    if (!call.wrong) return;
    if (call.task < 0 || call.task >= tasks)
      throw Error(ErrorCode::bad_value,
                  text("the executor's parallel_for must run tasks 0 to ", tasks - 1, " (got ", call.task, ")"));
    throw Error(ErrorCode::bad_value, text("the executor's parallel_for must run tasks as workers 0 to ", workers_ - 1,
                                           " (got ", call.worker, ")"));
  }

 private:
  Executor& host_;
  int workers_;
};

}  // namespace onepass
