// Children of fork() compute, whatever the parent's threads were doing, and get the same bits.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "onepass/onepass.hpp"

namespace onepass {
namespace {

using Floats = std::vector<float>;

// LeakSanitizer looks for leaks when a process exits. In a child it finds all that the threads of the parent held.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCountsLeaks = true;
#elif defined(__has_feature)
constexpr bool kCountsLeaks = __has_feature(address_sanitizer);
#else
constexpr bool kCountsLeaks = false;
#endif

// Some ten tasks of flash, and a decoding call that is split and combined: both with two parallel_fors.
Floats result(Executor* executor) {
  Floats outs;
  for (const auto& [rows, keys] : {std::pair<std::int64_t, std::int64_t>{300, 400}, {1, 3000}}) {
    const auto wave = [](std::int64_t n, float f) {
      Floats x(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(f * static_cast<float>(i));
      return x;
    };
    Floats q = wave(4 * rows * 64, 0.9f), k = wave(2 * keys * 64, 0.7f), v = wave(2 * keys * 64, 0.3f), out(q.size());
    const AttentionTensors tensors{.q = {q.data(), DType::f32, {1, 4, rows, 64}},
                                   .k = {k.data(), DType::f32, {1, 2, keys, 64}},
                                   .v = {v.data(), DType::f32, {1, 2, keys, 64}},
                                   .out = {out.data(), DType::f32, {1, 4, rows, 64}}};
    attention(tensors, {}, {.executor = executor});
    outs.insert(outs.end(), out.begin(), out.end());
  }
  return outs;
}

// Forks a child that runs `right`, and expects true of it. A child that hangs is ended by its alarm.
void expect_in_child(const std::function<bool()>& right, const char* what, bool exits = false) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    const int status = right() ? 0 : 1;
    if (exits && !kCountsLeaks) std::exit(status);  // with the destructors of what is static, TBB's too
    _exit(status);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << what << ": ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << what;
}

// Alone in its process this is the first to use TBB, and a child may have threads of its own; so may its children not.
TEST(Fork, BeforeTheFirstCall) {
  Floats expected = result(&serial_executor());
  expect_in_child(
      [&] {
        if (result(nullptr) != expected || result(make_executor(3).get()) != expected) return false;
        expect_in_child([&] { return result(nullptr) == expected; }, "grandchild");
        return !testing::Test::HasFailure();
      },
      "child");
  EXPECT_EQ(result(nullptr), expected);
}

TEST(Fork, WhileOtherThreadsAreInsideCalls) {
  const Floats expected = result(&serial_executor());
  const auto made = make_executor(3);
  std::atomic<bool> stop{false};
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&, i] {
      for (; !stop; ++calls) result(i % 2 == 0 ? nullptr : made.get());
    });
  }
  while (calls < 4) std::this_thread::yield();
  for (int i = 0; i < 8 && !HasFailure(); ++i) {
    expect_in_child([&] { return result(nullptr) == expected; }, "the default executor");
    expect_in_child([&] { return result(made.get()) == expected; }, "an executor of the parent's");
    expect_in_child(
        [&] {
          const auto own = make_executor(2);
          return own->workers() == 1 && result(own.get()) == expected;
        },
        "an executor of the child's");
  }
  stop = true;
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(result(nullptr), expected);
}

TEST(Fork, AChildMayEndItsExecutorsAndItself) {
  const Floats expected = result(&serial_executor());
  auto made = make_executor(3);
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop) result(made.get());
  });
  for (int i = 0; i < 5 && !HasFailure(); ++i) {
    expect_in_child(
        [&] {
          const bool same = result(made.get()) == expected && result(nullptr) == expected;
          made.reset();
          return same;
        },
        "a child that exits", true);
  }
  stop = true;
  caller.join();
}

}  // namespace
}  // namespace onepass
