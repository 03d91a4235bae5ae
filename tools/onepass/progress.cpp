#include "tools/onepass/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "tools/onepass/streams.hpp"

namespace onepass::cli {

Progress::Progress(std::string label, bool wanted)
    : label_(std::move(label)), enabled_(wanted || ::isatty(STDERR_FILENO)), terminal_(::isatty(STDERR_FILENO)) {}

Progress::~Progress() {
  if (shown_ && terminal_) say("\r\x1b[K");  // what stays on the screen is the result
}

void Progress::at(std::int64_t done, std::int64_t total) {
  if (!enabled_) return;
  const std::int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_).count();
  if (ms < next_ms_.load(std::memory_order_relaxed)) return;
  const std::unique_lock lock(printing_, std::try_to_lock);
  if (!lock || ms < next_ms_.load(std::memory_order_relaxed)) return;
  next_ms_.store(ms + (terminal_ ? 100 : 1000), std::memory_order_relaxed);
  shown_ = true;
  const double share = total > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total) : 100.0;
  say(fmt::format("{}{}  {:.0f} %  {} s{}", terminal_ ? "\r" : "", label_, share, ms / 1000,
                  terminal_ ? "\x1b[K" : "\n"));
}

void add_progress_flag(const Command& command, bool& wanted) {
  command.flag("--progress", wanted, "Report progress on stderr even if it is not a terminal");
}

void ProgressExecutor::parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) {
  struct Counted {
    void (*body)(void*, std::int64_t, int);
    void* context;
    Progress& progress;
    std::int64_t tasks;
    std::atomic<std::int64_t> done{0};
  } counted{body, context, progress_, tasks};
  inner_.parallel_for(
      tasks,
      [](void* p, std::int64_t task, int worker) {
        auto& c = *static_cast<Counted*>(p);
        c.body(c.context, task, worker);
        c.progress.at(c.done.fetch_add(1, std::memory_order_relaxed) + 1, c.tasks);
      },
      &counted);
}

}  // namespace onepass::cli
