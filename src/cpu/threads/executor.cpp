// The executors that every build has, and the number of CPUs behind the default.
#include "onepass/executor.hpp"

#include <algorithm>
#include <bit>
#include <thread>

#include <sched.h>

#include "base/make_once.hpp"
#include "cpu/threads/cgroup.hpp"
#include "cpu/threads/executors.hpp"

namespace onepass::inline v0 {
namespace {

class Serial final : public Executor {
 public:
  int workers() const override { return 1; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    for (std::int64_t i = 0; i < tasks; ++i) body(context, i, 0);
  }
};

}  // namespace

std::shared_ptr<Executor> make_executor(int threads) {
#ifdef ONEPASS_TBB
  return cpu::tbb_executor(threads);
#else
  return cpu::thread_executor(threads);
#endif
}

Executor& default_executor() {
  static constinit MakeOnce<const std::shared_ptr<Executor>> executor;
  return *executor.get([] { return make_executor(0); });
}

Executor& serial_executor() {
  static constinit MakeOnce<Serial> executor;
  return executor.get([] { return Serial(); });
}

}  // namespace onepass::inline v0

namespace onepass::cpu {

int usable_cpus() {
  cpu_set_t mask;
  const int cpus = sched_getaffinity(0, sizeof mask, &mask) == 0
                       ? CPU_COUNT(&mask)
                       : std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
  const int quota = cgroup_cpus();
  return quota > 0 ? std::min(cpus, quota) : cpus;
}

}  // namespace onepass::cpu
