// The hook through which the CPU backend gets its threads.
#pragma once
#include <cstdint>
#include <memory>

#include "onepass/export.h"

namespace onepass::inline v0 {

// Runs independent tasks. Results never depend on the number of workers or on the worker of a task: tasks are cut
// by the problem's shape alone.
//
// Of a host's executor the library checks this: workers() is read once per call, and 1 to 65536 are accepted. A task or
// worker number out of range reaches no kernel: the task is left out, and when parallel_for has returned the call
// throws Error (bad_value). What parallel_for throws leaves the call as it is; no task may run any more by then. In
// both cases out and lse may have been written in part. The host must run every task once, and one task at a time for
// each worker number; the library does not check it.
//
// - A body may throw. An executor with threads of its own must catch the exception on its thread and rethrow it from
//   parallel_for once no task runs any more; it may skip the tasks that have not begun.
// - Bodies never call parallel_for, so an executor need not support nested calls.
// - Calls of onepass from several threads that share an executor call parallel_for at the same time. An executor that
//   supports one loop at a time must take a lock in parallel_for.
//
// docs/guides/cpp.md has an executor of std::thread.
class ONEPASS_API Executor {
 public:
  virtual ~Executor() = default;
  // Upper bound of the `worker` argument below; scratch memory is booked once per worker.
  virtual int workers() const = 0;
  // Calls body(context, task, worker) for every task in [0, tasks), worker in [0, workers()), and returns when all are
  // done. Two calls that run at the same time never share a worker number. Lower task numbers should start earlier.
  virtual void parallel_for(std::int64_t tasks, void (*body)(void* context, std::int64_t task, int worker),
                            void* context) = 0;
};

// oneTBB in an arena of `threads` workers, or threads of the C++ library where onepass is built with ONEPASS_TBB=OFF
// (calls that share such an executor take turns). 0: as many as the process may use, the CPUs of its affinity mask or
// the CPU quota of its cgroups (v2's cpu.max, v1's cpu.cfs_quota_us, ancestors' too; rounded up), whichever is less, as
// they are when the executor is made. Safe to call from several threads.
//
// In a child of fork(), executors that were made before it work on the calling thread alone, whatever other threads
// were doing; results have the same bits. With oneTBB new ones do too if the parent had made one; else they have
// threads.
ONEPASS_API std::shared_ptr<Executor> make_executor(int threads = 0);
// The executor that calls without one use: make_executor(0), made on first use.
ONEPASS_API Executor& default_executor();
// Everything on the calling thread.
ONEPASS_API Executor& serial_executor();

}  // namespace onepass::inline v0
