// A value made once, also in a child that is forked while another thread makes it.
#include "base/make_once.hpp"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/fork.hpp"

namespace onepass {
namespace {

TEST(MakeOnce, KeepsTheFirst) {
  static constinit MakeOnce<const std::string> once;
  const std::string& first = once.get([] { return "first"; });
  EXPECT_EQ(&once.get([] { return "second"; }), &first);
  EXPECT_EQ(first, "first");
}

TEST(MakeOnce, GivesAllThreadsTheSame) {
  static constinit MakeOnce<int> once;
  std::vector<const int*> got(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < got.size(); ++i) {
    threads.emplace_back([&, i] { got[i] = &once.get([&] { return static_cast<int>(i); }); });
  }
  for (std::thread& t : threads) t.join();
  for (const int* one : got) EXPECT_EQ(one, got[0]);
}

TEST(MakeOnce, AChildDoesNotWaitForAThreadItDoesNotHave) {
  static constinit MakeOnce<const std::string> once;
  std::promise<void> begun, child_is_done;
  std::thread maker([&] {
    once.get([&] {
      begun.set_value();
      child_is_done.get_future().wait();
      return "made";
    });
  });
  begun.get_future().wait();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends the child by a signal
    _exit(once.get([] { return "made by the child"; }) == "made by the child" ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  child_is_done.set_value();
  maker.join();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(once.get([] { return "late"; }), "made");
}

TEST(ForkCount, IsOneMoreInAChild) {
  const int here = fork_count();
  const pid_t child = fork();
  if (child == 0) _exit(fork_count() == here + 1 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(fork_count(), here);
}

}  // namespace
}  // namespace onepass
