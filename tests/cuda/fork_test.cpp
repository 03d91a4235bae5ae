// CUDA in children of fork(): the driver does not survive it, and a sentence says so before anything of it is called.
// With a driver that is a fake.
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "cuda/host/kernels.hpp"
#include "onepass/onepass.hpp"
#include "plan/plan.hpp"
#include "support/sentence.hpp"

namespace onepass::cuda {
namespace {

bool in_child(const std::function<bool()>& right) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends one that hangs
    _exit(right() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status == 0;
}

bool speaks_of_fork(const std::string& sentence) {
  return sentence.find("this process was forked from a process that uses CUDA") != sentence.npos &&
         sentence.find("spawn") != sentence.npos;
}
bool refused() {
  std::string why;
  return driver(&why) == nullptr && speaks_of_fork(why);
}
bool throws(const std::function<void()>& call) { return speaks_of_fork(test::sentence_of(call)); }

TEST(CudaFork, AChildIsRefusedByASentenceOnceItsParentUsesTheDriver) {
  void* const fake = dlopen(ONEPASS_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL);  // is then what "libcuda.so.1" opens
  ASSERT_NE(fake, nullptr) << dlerror();
  auto& waits = *static_cast<std::atomic<bool>*>(dlsym(fake, "fake_init_waits"));
  auto& has_begun = *static_cast<std::atomic<bool>*>(dlsym(fake, "fake_init_has_begun"));

  EXPECT_TRUE(in_child([] { return driver() != nullptr && device_facts(0).major == 9; })) << "before the first use";

  waits = true;
  std::thread opener([] { driver(); });
  while (!has_begun) std::this_thread::yield();
  EXPECT_TRUE(in_child(refused)) << "in the middle of the first use";
  waits = false;
  opener.join();

  std::string why;
  ASSERT_NE(driver(&why), nullptr) << why;
  EXPECT_EQ(device_facts(0).name, "H200");
  EXPECT_TRUE(in_child(refused));
  const Problem problem = parse_problem("fwd s64 d64 bf16 cuda");
  const Plan plan = make_plan(problem);
  EXPECT_TRUE(in_child([&] {
    const auto tensor = [&](void* data) { return Tensor(data, DType::bf16, {1, 1, 64, 64}, problem.device); };
    const Tensor t = tensor(&why), out = tensor(reinterpret_cast<char*>(&why) + (1 << 20));  // never read
    return throws([&] { (void)make_plan(problem); }) &&
           throws([&] { attention({.q = t, .k = t, .v = t, .out = out}); }) && throws([] { device_facts(0); }) &&
           speaks_of_fork(explain(problem));
  }));
  {
    ContextScope scope(device_facts(0));
    EXPECT_TRUE(in_child([&] {
      scope.~ContextScope();  // of a caller that unwinds
      return throws([] { ContextScope another(device_facts(0)); });
    }));
  }
  EXPECT_TRUE(in_child([] { return in_child(refused); })) << "a grandchild";
  EXPECT_NE(driver(), nullptr) << "the parent goes on";
}

}  // namespace
}  // namespace onepass::cuda
