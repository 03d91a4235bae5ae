// Plans of earlier calls: which calls share one, what is looked at again, how many are kept, and by how many threads.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "check/inputs.hpp"
#include "plan/cache.hpp"
#include "plan/compute.hpp"
#include "problem/implementation.hpp"
#include "problem/roles.hpp"

namespace onepass::plan {
namespace {

using check::Inputs;
using check::make_inputs;

const PlanState* planned_for(const Inputs& in, int workers = 1, std::string_view implementation = {}) {
  return planned(in.problem.op, in.tensors, in.attention, workers, implementation).state();
}

TEST(PlanCache, ACallLikeAnEarlierOneTakesItsPlan) {
  for (const char* line :
       {"b1 h4/2 s20x30 d16 lse", "b2 h2 s7x9 d8 bf16 causal_top_left bias=fp32:bhqk", "bwd b1 h4/2 s9 d16",
        "b2 h2 s3x64 d8 seqused kv=paged:16", "softmax b1 h1 s4x33 log", "merge n3 b1 h2 s5 d8", "linear m3 n8 k16",
        "quantize b1 h2 s40x64", "b1 h2 s6 d8 score_mod={score * 0.5f}", "b1 h2 s20 d16 bf16 fp8=center",
        "append b2 h2 s3x64 d8 kv=paged:16", "append h4/2 q varlen=3,2 s5x64 d8 rotary=4"}) {
    const Problem p = parse_problem(line);
    const Inputs one = make_inputs(p, 0), other = make_inputs(p, 2);
    const Plan plan = planned(p.op, one.tensors, one.attention, 1);
    EXPECT_EQ(planned(p.op, other.tensors, other.attention, 1).state(), plan.state()) << line;
    EXPECT_EQ(problem_of(plan), problem_of(make_plan(one.problem))) << line;
  }
}

TEST(PlanCache, WhateverAPlanDependsOnIsOfTheKey) {
  const Inputs in = make_inputs(parse_problem("b2 h4/2 s20x30 d16 lse bias=fp32:bhqk"), 1);
  std::vector<std::function<void(Tensors&, Attention&)>> changes = {
      [](Tensors&, Attention&) {},
      [](Tensors&, Attention& a) { a.band.causal = true; },
      [](Tensors&, Attention& a) { a.band = {.causal = true, .align = Align::top_left}; },
      [](Tensors&, Attention& a) { a.band.left = 3; },
      [](Tensors&, Attention& a) { a.band.right = 3; },
      [](Tensors&, Attention& a) { a.band = {.align = Align::offset, .left = 3, .offset = 2}; },
      [](Tensors&, Attention& a) { a.scale = 0.25; },
      [](Tensors&, Attention& a) { a.scale = 0.0; },
      [](Tensors&, Attention& a) { a.softcap = 2; },
      [](Tensors&, Attention& a) { a.seed = 5; },
      [](Tensors&, Attention& a) { a.batch_invariant = true; },
      [](Tensors&, Attention& a) { a.unified_max = 0.0f; },
      [](Tensors&, Attention& a) { a.unified_max = 1.0f; },
      [](Tensors&, Attention& a) { a.score_mod = "score + 1"; },
      [](Tensors&, Attention& a) { a.score_mod = "score + 2"; },
      [](Tensors&, Attention& a) { a.mask_mod = "k_index > 2"; },
      [](Tensors& t, Attention&) { t.lse = {}; },
      [](Tensors& t, Attention&) { t.bias = {}; },
      [](Tensors& t, Attention&) { t.bias.shape[0] = 1; },
      [](Tensors& t, Attention&) { t.v.data = t.k.data; },
      [](Tensors& t, Attention&) { t.q.shape[2] = 19; },
      [](Tensors& t, Attention&) { t.q.shape[0] = t.k.shape[0] = t.v.shape[0] = t.out.shape[0] = t.lse.shape[0] = 1; },
      [](Tensors& t, Attention&) { t.q.stride[1] = 0; },
  };
  std::set<std::vector<std::uint64_t>> keys;
  const auto add = [&](const Tensors& t, const CallOptions& a, int workers, std::string_view name) {
    const CallKey key(kForward, t, a, workers, name);
    EXPECT_TRUE(key.is_kept());
    keys.emplace(key.words().begin(), key.words().end());
  };
  for (const auto& change : changes) {
    Tensors t = in.tensors;
    CallOptions a = in.attention;
    change(t, a);
    add(t, a, 1, "");
  }
  add(in.tensors, in.attention, 2, "");
  add(in.tensors, in.attention, 1, "reference");
  EXPECT_EQ(keys.size(), changes.size() + 2);
  EXPECT_STREQ(planned_for(in, 1, "reference")->implementation, "reference");
  EXPECT_STRNE(planned_for(in)->implementation, "reference");
}

TEST(PlanCache, LeavesOutWhatAProblemReadsFromMemory) {
  const auto kept = [](const Inputs& in) { return CallKey(in.problem.op, in.tensors, in.attention, 1, {}).is_kept(); };
  EXPECT_TRUE(kept(make_inputs(parse_problem("h2 d8 varlen=3,5/4,6"), 1)));
  EXPECT_FALSE(kept(make_inputs(parse_problem("b1 h2 s4 d8 dropout=0.5 seed=3"), 1)));
  Inputs in = make_inputs(parse_problem("b1 h2 s4 d8"), 1);
  EXPECT_TRUE(kept(in));
  in.attention.score_mod = "score" + std::string(8192, ' ');
  EXPECT_FALSE(kept(in));
  in.attention.score_mod.clear();
  in.tensors.q.rank = 5;  // and does not read behind the tensor's shape
  EXPECT_FALSE(kept(in));
}

// A plan of packed sequences is made for bounds of their lengths.
TEST(PlanCache, PackedCallsWithTheSameBoundsShareAPlan) {
  const auto plan_of = [](const char* line, bool bounds) {
    Inputs in = make_inputs(parse_problem(line), 1);
    if (!bounds) in.attention.max_seqlen_q = in.attention.max_seqlen_k = 0;
    return planned_for(in);
  };
  const PlanState* const longest = plan_of("h2 d8 varlen=3,5/4,6 packed=9:12", false);
  EXPECT_EQ(plan_of("h2 d8 varlen=5,4/6,0 packed=9:12", false), longest);
  EXPECT_NE(plan_of("h2 d8 varlen=4,4/6,0 packed=9:12", false), longest);
  const PlanState* const bounded = plan_of("h2 d8 varlen=3,5/4,6 s7x8 packed=9:12", true);
  EXPECT_NE(bounded, longest);
  EXPECT_EQ(plan_of("h2 d8 varlen=1,0/2,2 s7x8 packed=9:12", true), bounded);
  EXPECT_EQ(bounded->problem->seq_q, 7);
}

TEST(PlanCache, LooksAtAddressesAndContentsInEveryCall) {
  Inputs in = make_inputs(parse_problem("b2 h2 s3x64 d8 seqused kv=paged:16"), 1);
  const auto call = [&](const Tensors& t) { attention(t, in.attention, {.executor = &serial_executor()}); };
  call(in.tensors);
  auto* const used = const_cast<std::int32_t*>(static_cast<const std::int32_t*>(in.tensors.seqused_k.data));
  const std::int32_t before = std::exchange(used[1], 65);
  EXPECT_THROW(call(in.tensors), Error);
  used[1] = before;
  call(in.tensors);
  Inputs plain = make_inputs(parse_problem("b1 h2 s6 d8"), 1);
  attention(plain.tensors, plain.attention, {.executor = &serial_executor()});
  Tensors over = plain.tensors;
  over.out.data = const_cast<void*>(plain.tensors.q.data);
  EXPECT_THROW(attention(over, plain.attention, {.executor = &serial_executor()}), Error);
  Tensors nowhere = plain.tensors;
  nowhere.k.data = nullptr;
  EXPECT_THROW(attention(nowhere, plain.attention, {.executor = &serial_executor()}), Error);
}

// The variables that plans depend on are read once in a process, so a kept plan is what a new one would be.
TEST(PlanCache, OutlivesItsEnvironment) {
  const Inputs in = make_inputs(parse_problem("linear m3 n8 k16"), 1);
  const Plan before = planned(kLinear, in.tensors, in.attention, 1);
  for (const char* name : {"ONEPASS_DATAFLOW", "ONEPASS_BLAS", "ONEPASS_CUBLASLT", "ONEPASS_NVRTC", "ONEPASS_CACHE"}) {
    setenv(name, "/nowhere", 1);
    EXPECT_EQ(make_plan(in.problem, {}, &serial_executor()).describe(), before.describe()) << name;
    EXPECT_EQ(planned(kLinear, in.tensors, in.attention, 1).state(), before.state()) << name;
    unsetenv(name);
  }
}

TEST(PlanCache, HoldsABoundedNumberAndForgetsTheOldest) {
  PlanCache cache;
  Inputs in = make_inputs(parse_problem("b1 h1 s2 d8"), 1);
  const Plan plan = make_plan(in.problem);
  const auto key = [&](int workers) { return CallKey(kForward, in.tensors, in.attention, workers, {}); };
  // 32 for each set. Hashes differ from process to process: with 16 some set had fewer than four in one run of 40, with
  // 32 in one of 50 million.
  constexpr int kCalls = 8 * PlanCache::kSets * PlanCache::kWays;
  for (int i = 1; i <= kCalls; ++i) {
    cache.keep(key(i), plan);
    EXPECT_TRUE(cache.find(key(1)).state()) << "in use, and forgotten after " << i;
  }
  EXPECT_EQ(cache.size(), PlanCache::kSets * PlanCache::kWays);
  int recent = 0;
  for (int i = 0; i < 256; ++i) recent += cache.find(key(kCalls - i)).state() != nullptr;
  EXPECT_GT(recent, 200);
}

TEST(PlanCacheThread, ManyCallersGetTheRightPlans) {
  PlanCache cache;
  constexpr int kShapes = 40, kThreads = 4, kTurns = 400;
  std::vector<Inputs> inputs;
  std::vector<Plan> plans;
  for (int i = 0; i < kShapes; ++i) {
    Problem p = parse_problem("b1 h1 s2 d8");
    p.seq_k = i + 1;
    set_contiguous(p);
    inputs.push_back(make_inputs(p, 1));
    plans.push_back(make_plan(inputs.back().problem));
  }
  std::atomic<int> found = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int turn = 0; turn < kTurns; ++turn) {
        for (std::size_t i = 0; i < kShapes; ++i) {
          // Keys of other workers push these out.
          const CallKey other(kForward, inputs[i].tensors, {}, 2 + thread * kTurns + turn, {});
          cache.keep(other, plans[i]);
          const CallKey key(kForward, inputs[i].tensors, {}, 1, {});
          const Plan known = cache.find(key);
          if (!known.state()) cache.keep(key, plans[i]);
          if (known.state() && ++found && problem_of(known) != problem_of(plans[i])) ++wrong;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(found, 0);
}

// Other threads look plans up all the time, so that children are made while sets are locked.
TEST(PlanCacheThread, AChildOfForkNeverWaits) {
  std::vector<Inputs> inputs;
  for (int i = 0; i < 64; ++i) {
    Problem p = parse_problem("b1 h1 s1 d8");
    p.seq_k = i + 1;
    set_contiguous(p);
    inputs.push_back(make_inputs(p, 1));
  }
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop)
        for (const Inputs& in : inputs) planned_for(in);
    });
  }
  for (int child = 0; child < 20; ++child) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      alarm(60);
      for (const Inputs& in : inputs)
        if (!planned_for(in)) _exit(1);
      _exit(0);
    }
    int status = 1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace onepass::plan
