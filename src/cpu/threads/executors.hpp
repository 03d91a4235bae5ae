// The executors behind make_executor (threads: 0 for usable_cpus()), and what they share.
#pragma once
#include <memory>

#include "onepass/executor.hpp"

namespace onepass::cpu {

std::shared_ptr<Executor> tbb_executor(int threads);  // not defined if ONEPASS_TBB is off
std::shared_ptr<Executor> thread_executor(int threads);

// The CPUs that this process may use: those of its affinity mask or its cgroups' quota, whichever is less.
int usable_cpus();

}  // namespace onepass::cpu
