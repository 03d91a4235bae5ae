// The executors that calls by a number of threads run on.
#pragma once
#include <array>
#include <memory>

#include "base/make_once.hpp"
#include "base/text.hpp"
#include "onepass/executor.hpp"

namespace onepass {

// Executors are kept: making one starts threads.
inline constexpr int kMaxThreads = 4096;
inline Executor* executor_of(int threads) {
  if (threads == 0) return &default_executor();
  if (threads == 1) return &serial_executor();
  if (threads < 0 || threads > kMaxThreads) {
    throw Error(ErrorCode::bad_value, text("threads must be 0 (all cores) to ", kMaxThreads, " (got ", threads, ")"));
  }
  static constinit std::array<MakeOnce<const std::shared_ptr<Executor>>, kMaxThreads + 1> executors;
  return executors[static_cast<std::size_t>(threads)].get([&] { return make_executor(threads); }).get();
}

}  // namespace onepass
