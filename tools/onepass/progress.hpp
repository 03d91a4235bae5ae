// A line on stderr for anything that takes longer than a second, where someone watches.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "onepass/executor.hpp"
#include "tools/onepass/options.hpp"

namespace onepass::cli {

// "computing  43 %  12 s". Silent for the first second, and always unless stderr is a terminal or --progress was given.
class Progress {
 public:
  Progress(std::string label, bool wanted);
  ~Progress();                                     // ends the line
  void at(std::int64_t done, std::int64_t total);  // from any thread

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool enabled_, terminal_;
  Clock::time_point start_ = Clock::now();
  std::atomic<std::int64_t> next_ms_{1000};
  std::mutex printing_;
  bool shown_ = false;
};

void add_progress_flag(const Command& command, bool& wanted);

// Another executor's threads, with the tasks counted.
class ProgressExecutor final : public Executor {
 public:
  ProgressExecutor(Executor& inner, Progress& progress) : inner_(inner), progress_(progress) {}
  int workers() const override { return inner_.workers(); }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override;

 private:
  Executor& inner_;
  Progress& progress_;
};

}  // namespace onepass::cli
