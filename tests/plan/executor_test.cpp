// A host's executor that does not keep its word: a sentence, and no access beyond what was booked for its workers.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <functional>
#include <vector>

#include "base/text.hpp"
#include "check/check.hpp"
#include "onepass/merge.hpp"
#include "plan/implementations.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

using check::Inputs;
using Body = void (*)(void*, std::int64_t, int);

struct Host final : Executor {
  int count = 1;
  std::function<void(std::int64_t, Body, void*)> work = [](std::int64_t tasks, Body body, void* context) {
    for (std::int64_t i = 0; i < tasks; ++i) body(context, i, 0);
  };
  int workers() const override { return count; }
  void parallel_for(std::int64_t tasks, Body body, void* context) override { work(tasks, body, context); }
};

// Every way in: f(executor) for attention, make_plan, run and merge, by every implementation.
void every_entry(Host& host, const std::function<void(const std::string&, const std::function<void()>&)>& expect) {
  for (const char* line : {"b2 h4/2 s70x130 d24 lse", "b2 h8/2 s1x600 d40 bf16 lse", "b1 h2 s3x4000 d32 lse"}) {
    Inputs in = check::make_inputs(parse_problem(line));
    const Tensors& a = in.tensors;
    for (const Implementation* row : plan::implementations()) {
      if (!why_not(*row, in.problem).empty()) continue;
      in.implementation = row->name;
      in.launch.executor = &host;
      const std::string name = text(row->name, " \"", line, "\"");
      expect("attention by " + name, [&] { in.attend(); });
      const auto planned = make_executor(3);
      const Plan plan = make_plan(in.problem, row->name, planned.get());
      std::vector<std::byte> memory(plan.workspace_bytes() + 64);
      std::byte* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
      expect("run by " + name,
             [&] { run(plan, a, {.executor = &host, .workspace = {aligned, plan.workspace_bytes()}}); });
    }
    if (a.out.dtype != DType::f32) continue;
    std::vector<float> joined(static_cast<std::size_t>(a.out.elements()));
    const Tensor out(joined.data(), DType::f32, {a.out.shape[0], a.out.shape[1], a.out.shape[2], a.out.shape[3]});
    const std::vector<ConstTensor> outs{a.out}, lses{a.lse};
    expect("merge", [&] { onepass::merge(outs, lses, out, {}, {.executor = &host}); });
  }
}

TEST(Host, IsHeardWhenItKeepsItsWord) {
  Host host;
  every_entry(host, [](const std::string& what, const auto& call) { EXPECT_NO_THROW(call()) << what; });
}

TEST(Host, WithoutWorkersIsRefused) {
  Host host;
  host.work = [](std::int64_t, Body, void*) { ADD_FAILURE() << "was asked to work"; };
  for (int workers : {0, -1, INT_MIN, 65537, INT_MAX}) {
    host.count = workers;
    const std::string expected = text("the executor must have 1 to 65536 workers (got ", workers, ")");
    every_entry(host, [&](const std::string& what, const auto& call) {
      const test::Said s = test::said_by(call);
      EXPECT_EQ(s.code, ErrorCode::bad_value) << what;
      EXPECT_EQ(s.sentence, expected) << what;
    });
    EXPECT_EQ(test::sentence_of([&] { (void)make_plan(parse_problem("b1 h2 s4 d8"), {}, &host); }), expected);
  }
}

TEST(Host, WorkerNumbersOutOfRangeReachNoKernel) {
  Host host;
  host.count = 2;
  for (int worker : {2, 3, 1000, INT_MAX, -1, INT_MIN}) {
    host.work = [&](std::int64_t tasks, Body body, void* context) {
      for (std::int64_t i = 0; i < tasks; ++i) body(context, i, i == tasks - 1 ? worker : 1);
    };
    every_entry(host, [&](const std::string& what, const auto& call) {
      const test::Said s = test::said_by(call);
      EXPECT_EQ(s.code, ErrorCode::bad_value) << what;
      EXPECT_EQ(s.sentence, text("the executor's parallel_for must run tasks as workers 0 to 1 (got ", worker, ")"))
          << what;
    });
  }
}

TEST(Host, TasksOutOfRangeReachNoKernel) {
  Host host;
  for (std::int64_t beyond : {std::int64_t{0}, std::int64_t{7}, INT64_MAX}) {
    for (std::int64_t wrong : {std::int64_t{-1}, INT64_MIN, beyond}) {
      std::int64_t ran = 0, asked = 0;
      host.work = [&](std::int64_t tasks, Body body, void* context) {
        ran = wrong < 0 ? wrong : wrong == INT64_MAX ? wrong : tasks + wrong;
        asked = tasks;
        for (std::int64_t i = 0; i < tasks; ++i) body(context, i, 0);
        body(context, ran, 0);
      };
      every_entry(host, [&](const std::string& what, const auto& call) {
        const test::Said s = test::said_by(call);
        EXPECT_EQ(s.code, ErrorCode::bad_value) << what;
        EXPECT_EQ(s.sentence, text("the executor's parallel_for must run tasks 0 to ", asked - 1, " (got ", ran, ")"))
            << what;
      });
    }
  }
}

// The number of workers is what it was when the call began, whatever the host says later.
TEST(Host, MayNotGrowDuringACall) {
  struct Growing final : Executor {
    mutable int asked = 0;
    int workers() const override { return ++asked; }
    void parallel_for(std::int64_t tasks, Body body, void* context) override {
      for (std::int64_t i = 0; i < tasks; ++i) body(context, i, 0);
    }
  };
  for (const char* line : {"b2 h4/2 s70x130 d24 lse", "b2 h8/2 s1x600 d40 bf16 lse"}) {
    Growing host;
    Inputs in = check::make_inputs(parse_problem(line));
    in.launch.executor = &host;
    in.attend();
    EXPECT_EQ(host.asked, 1) << line;
  }
}

TEST(Host, ExceptionsComeThrough) {
  struct Own {};
  Host host;
  int before = 0;
  host.work = [&](std::int64_t tasks, Body body, void* context) {
    for (std::int64_t i = 0; i < std::min<std::int64_t>(tasks, before); ++i) body(context, i, 0);
    throw Own{};
  };
  for (before = 0; before < 3; ++before) {
    every_entry(host, [](const std::string& what, const auto& call) { EXPECT_THROW(call(), Own) << what; });
  }
}

}  // namespace
}  // namespace onepass
