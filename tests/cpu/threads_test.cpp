// The executor of std::thread, which builds without oneTBB have.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/parallel.hpp"
#include "cpu/threads/executors.hpp"

namespace onepass {
namespace {

TEST(Threads, RunEveryTaskOnceAndAWorkerOneTaskAtATime) {
  for (const int workers : {1, 2, 3, 8}) {
    const auto executor = cpu::thread_executor(workers);
    ASSERT_EQ(executor->workers(), workers);
    for (const int tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      std::vector<std::atomic<int>> busy(static_cast<std::size_t>(workers));
      std::atomic<int> wrong{0};
      parallel(*executor, tasks, [&](std::int64_t task, int worker) {
        wrong += worker < 0 || worker >= workers || ++busy[static_cast<std::size_t>(worker)] != 1;
        ++runs[static_cast<std::size_t>(task)];
        --busy[static_cast<std::size_t>(worker)];
      });
      EXPECT_EQ(wrong, 0);
      for (const auto& n : runs) EXPECT_EQ(n, 1);
    }
  }
}

TEST(Threads, AreAsManyAsTheProcessMayUse) { EXPECT_EQ(cpu::thread_executor(0)->workers(), cpu::usable_cpus()); }

TEST(Threads, ServeSeveralCallersInTurn) {
  const auto executor = cpu::thread_executor(3);
  std::atomic<int> busy{0}, most{0}, runs{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int n = 0; n < 200; ++n) {
        parallel(*executor, 5, [&](std::int64_t, int) {
          const int now = ++busy;
          for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
          }
          ++runs;
          --busy;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(runs, 4 * 200 * 5);
  EXPECT_LE(most, 3);
}

TEST(Threads, PassAnExceptionOnAndWorkAgain) {
  const auto executor = cpu::thread_executor(3);
  for (int i = 0; i < 20; ++i) {
    std::atomic<int> runs{0};
    auto fail = [&](std::int64_t task, int) {
      ++runs;
      if (task % 5 == 3) throw std::runtime_error("task");
    };
    EXPECT_THROW(parallel(*executor, 1000, fail), std::runtime_error);
    EXPECT_LT(runs, 1000);
    runs = 0;
    parallel(*executor, 100, [&](std::int64_t, int) { ++runs; });
    EXPECT_EQ(runs, 100);
  }
}

TEST(Threads, OfAParentAreReplacedByTheCallerInAChild) {
  auto executor = cpu::thread_executor(3);
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop) parallel(*executor, 5, [](std::int64_t, int) {});
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      std::atomic<int> runs{0}, others{0};
      auto count = [&](std::int64_t, int worker) { ++runs, others += worker != 0; };
      parallel(*executor, 100, count);
      const bool alone = runs == 100 && others == 0;
      executor.reset();
      parallel(*cpu::thread_executor(2), 100, count);
      _exit(alone && runs == 200 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  caller.join();
}

}  // namespace
}  // namespace onepass
