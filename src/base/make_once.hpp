// A value that a process makes when it is first asked for, without a lock. A function's static variable has one: a
// child that is forked while another thread makes the value would wait for that thread, which it does not have.
#pragma once
#include <atomic>
#include <memory>

namespace onepass {

// Threads that ask at once each make a value, and one of them is kept. It is never destroyed: other threads may still
// use it while the process ends. For variables of static storage: `static constinit MakeOnce<T> x;`.
template <class T>
class MakeOnce {
 public:
  template <class Make>
  T& get(const Make& make) {
    if (T* const made = made_.load(std::memory_order_acquire)) return *made;
    auto fresh = std::make_unique<T>(make());
    T* kept = nullptr;
    if (!made_.compare_exchange_strong(kept, fresh.get(), std::memory_order_acq_rel)) return *kept;
    return *fresh.release();
  }
  T* if_made() const { return made_.load(std::memory_order_acquire); }

 private:
  std::atomic<T*> made_{nullptr};
};

}  // namespace onepass
