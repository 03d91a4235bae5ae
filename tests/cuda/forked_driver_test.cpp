// The machine's own driver, if it has one, in a child of fork().
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "cuda/driver/api.hpp"

namespace onepass::cuda {
namespace {

TEST(ForkedDriver, IsRefusedIfTheParentHasItAndMissingIfItIsMissing) {
  std::string why;
  driver(&why);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    std::string said;
    const bool none = driver(&said) == nullptr;
    _exit(
        none && (why.empty() ? said.starts_with("this process was forked from a process that uses CUDA") : said == why)
            ? 0
            : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << why;
}

}  // namespace
}  // namespace onepass::cuda
