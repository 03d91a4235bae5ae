// The ordered choice, its explanation, and what run refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "reference/reference.hpp"

namespace onepass {
namespace {

using check::Inputs;

std::string sentence_of(const std::function<void()>& f, ErrorCode code) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  return "nothing";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(List, ReferenceStandsLastAndNamesAreUnique) {
  const auto all = plan::implementations();
  ASSERT_GT(all.size(), 1u);
  EXPECT_EQ(all.back(), &reference::reference_implementation());
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_STRNE(all[i]->name, all[j]->name);
  }
}

TEST(Plan, TakesTheFirstThatAccepts) {
  for (const char* line :
       {"b1 h4/2 s64 d64", "b1 h8/1 s1x4096 d128 bf16", "b2 h2 s7x3 d5 fp16 causal_top_left", "b0 h1 s3 d8"}) {
    const Problem p = parse_problem(line);
    const Plan plan = make_plan(p);
    for (const Implementation* row : plan::implementations()) {
      if (row == plan.implementation) break;
      EXPECT_NE(row->why_not(p), "") << row->name << " stands before " << plan.name() << " and accepts " << line;
    }
    EXPECT_EQ(plan.implementation->why_not(p), "");
    EXPECT_NE(plan.name(), "reference");
    EXPECT_NE(plan.describe(), "");
  }
}

TEST(Plan, ByName) {
  const Problem p = parse_problem("b1 h4/2 s64 d64");
  EXPECT_EQ(make_plan(p, "reference").name(), "reference");
  const std::string sentence = sentence_of([&] { (void)make_plan(p, "cpu.magic"); }, ErrorCode::bad_value);
  EXPECT_TRUE(has(sentence, "implementation 'cpu.magic' is unknown here; there are ")) << sentence;
  for (const Implementation* row : plan::implementations()) EXPECT_TRUE(has(sentence, row->name)) << sentence;
}

TEST(Plan, NothingFallsBackToTheReference) {
  const Problem p = parse_problem("b1 h4/2 s64 d576/512 cuda");
  const std::string sentence = sentence_of([&] { (void)make_plan(p); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(sentence, "no implementation accepts \"fwd b1 h4/2 s64 d576/512 fp32 cuda:0\"; ")) << sentence;
  for (const Implementation* row : plan::implementations()) {  // every refusal with its reason
    if (row == &reference::reference_implementation()) continue;
    EXPECT_TRUE(has(sentence, std::string(row->name) + ": " + row->why_not(p))) << sentence;
  }
  EXPECT_TRUE(has(sentence_of([&] { (void)make_plan(p, "reference"); }, ErrorCode::unsupported),
                  "reference: it computes on the CPU only"));
}

TEST(Plan, ValidatesTheProblem) {
  Problem p = parse_problem("b1 h4/2 s64 d64");
  p.heads_kv = 3;
  EXPECT_TRUE(has(sentence_of([&] { (void)make_plan(p); }, ErrorCode::bad_shape), "heads_q = 4"));
  EXPECT_TRUE(has(sentence_of([&] { (void)explain(p); }, ErrorCode::bad_shape), "heads_q = 4"));
}

TEST(Plan, EmptyPlanHasAName) {
  EXPECT_EQ(Plan{}.name(), "none");
  EXPECT_EQ(Plan{}.describe(), "");
}

TEST(Explain, ALineEachAndOneChoice) {
  const Problem p = parse_problem("b1 h4/2 s64 d64");
  const std::string text = explain(p);
  EXPECT_TRUE(text.starts_with("fwd b1 h4/2 s64 d64 fp32\n"));
  const auto all = plan::implementations();
  EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')), all.size() + 1);
  const Plan plan = make_plan(p);
  for (const Implementation* row : all) {
    const bool chosen = row == plan.implementation;
    const std::string refusal = row->why_not(p);
    EXPECT_TRUE(has(text, std::string(chosen ? "* " : "  ") + row->name + ": " +
                              (refusal.empty() ? row->describe(p) : "no, " + refusal)))
        << text;
  }
  EXPECT_TRUE(has(text, "(only by name)"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '*'), 1);
}

class Run : public testing::Test {
 protected:
  std::string run_sentence(ErrorCode code) {
    in.poison_outputs();
    const Arguments& a = in.tensors;
    const std::string s = sentence_of([&] { run(plan, a.q, a.k, a.v, a.out, in.options, workspace); }, code);
    EXPECT_EQ(in.buffers[3].all_poison(), s != "nothing");
    return s;
  }
  Inputs in = check::make_inputs(parse_problem("b1 h4/2 s20x30 d16"));
  Plan plan = make_plan(in.problem);
  std::vector<std::byte> memory = std::vector<std::byte>(plan.workspace_bytes + 128);
  std::byte* workspace = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
};

TEST_F(Run, RunsWithTheOptionsItWasPlannedFor) { EXPECT_EQ(run_sentence(ErrorCode::ok), "nothing"); }

TEST_F(Run, RefusesOtherTensors) {
  in.options.softcap = 3;
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_shape),
                  "the tensors are of \"fwd b1 h4/2 s20x30 d16 fp32 softcap=3\" but the plan is for \"fwd b1 h4/2 "
                  "s20x30 d16 fp32\""));
  in.options.softcap = 0;
  in.tensors.k.shape[2] = in.tensors.v.shape[2] = 29;
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_shape), "s20x29"));
}

TEST_F(Run, RefusesAnEmptyPlan) {
  plan = {};
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value), "the plan is empty; make_plan makes one"));
}

TEST_F(Run, RefusesABadWorkspace) {
  plan.workspace_bytes = std::max<std::size_t>(plan.workspace_bytes, 64);
  workspace += 8;
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value),
                  text("workspace must point to ", plan.workspace_bytes, " bytes aligned to 64")));
  workspace = nullptr;
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value), "aligned to 64"));
}

TEST_F(Run, RefusesMoreWorkersThanPlanned) {
  const auto wide = make_executor(plan.workers + 1);
  in.options.executor = wide.get();
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value),
                  text("the executor has ", plan.workers + 1, " workers but the plan was made for ", plan.workers)));
}

TEST_F(Run, OneCallEqualsThreeSteps) {
  ASSERT_EQ(run_sentence(ErrorCode::ok), "nothing");
  const auto bytes = [&] {
    return std::vector<std::byte>(in.buffers[3].data(), in.buffers[3].data() + in.buffers[3].bytes());
  };
  const auto three_steps = bytes();
  in.poison_outputs();
  const Arguments& a = in.tensors;
  attention(a.q, a.k, a.v, a.out, in.options);
  EXPECT_EQ(bytes(), three_steps);
}

}  // namespace
}  // namespace onepass
