// An executor says how many workers it has and how it runs tasks.
#include <onepass/executor.hpp>

struct Host : onepass::Executor {
  int workers() const override { return 1; }
#ifndef MISUSE
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    for (std::int64_t task = 0; task < tasks; ++task) body(context, task, 0);
  }
#endif
};
Host host;
