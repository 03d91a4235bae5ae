#include "base/fork.hpp"

#include <atomic>

#include <pthread.h>

namespace onepass {
namespace {

constinit std::atomic<int> count{0};
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1); });

}  // namespace

int fork_count() { return count.load(std::memory_order_acquire); }

}  // namespace onepass
