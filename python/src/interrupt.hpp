// Ctrl-C during a call: an executor that gives Python's signal handlers their turn between tasks.
#pragma once
#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "onepass/executor.hpp"

namespace onepass::python {

// Python runs the handlers of signals in its main thread, which holds the GIL meanwhile. So a caller that is that
// thread takes the GIL every 100 ms, between two of its tasks, and lets them run. If one raises (KeyboardInterrupt),
// the tasks that have not begun are skipped and `raise` throws what it raised. A call that is over sooner never takes
// the GIL; it looks at the clock after each of the caller's tasks.
class Interruptible final : public Executor {
 public:
  explicit Interruptible(Executor& inner) : inner_(inner) {}

  int workers() const override { return inner_.workers(); }

  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    if (stopped_.load(std::memory_order_relaxed)) return;
    if (tasks == 1) return inner_.parallel_for(tasks, body, context);  // nothing to be between
    struct Part {
      Interruptible& call;
      void (*body)(void*, std::int64_t, int);
      void* context;
    } part{*this, body, context};
    inner_.parallel_for(
        tasks,
        [](void* p, std::int64_t task, int worker) {
          const auto& [call, do_task, context_of_task] = *static_cast<Part*>(p);
          if (call.stopped_.load(std::memory_order_relaxed)) return;
          do_task(context_of_task, task, worker);
          if (std::this_thread::get_id() == call.caller_) call.look();
        },
        &part);
  }

  // After the call, with the GIL.
  void raise() const {
    if (stopped_.load(std::memory_order_relaxed)) throw nanobind::python_error();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPeriod = std::chrono::milliseconds(100);

  void look() {  // by the caller alone; what a handler raises stays set in its thread state until `raise`
    const Clock::time_point now = Clock::now();
    if (next_ == Clock::time_point()) next_ = now + kPeriod;
    if (now < next_) return;
    const nanobind::gil_scoped_acquire locked;
    if (!locked.is_valid() || PyErr_CheckSignals() != 0) stopped_.store(locked.is_valid(), std::memory_order_relaxed);
    next_ = is_main_thread() ? Clock::now() + kPeriod : Clock::time_point::max();
  }

  static bool is_main_thread() {
    if (PyErr_Occurred()) return true;
    const nanobind::object ident = nanobind::module_::import_("threading").attr("main_thread")().attr("ident");
    return nanobind::cast<unsigned long>(ident) == PyThread_get_thread_ident();
  }

  Executor& inner_;
  const std::thread::id caller_ = std::this_thread::get_id();
  Clock::time_point next_;  // set by the first look
  std::atomic<bool> stopped_{false};
};

}  // namespace onepass::python
