// The ordered choice, its explanation, and what run refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "base/text.hpp"
#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "reference/reference.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

using check::Inputs;

std::string sentence_of(const std::function<void()>& f, ErrorCode code) {
  const test::Said said = test::said_by(f);
  EXPECT_TRUE(said.code == code || said.sentence.empty()) << said.sentence;
  return said.sentence;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(List, ReferenceStandsLastAndNamesAreUnique) {
  const auto all = plan::implementations();
  ASSERT_GT(all.size(), 1u);
  EXPECT_TRUE(reference::is_reference(*all.back()));
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
      if (row->name == plan.name()) break;
      EXPECT_NE(why_not(*row, p), "") << row->name << " stands before " << plan.name() << " and accepts " << line;
    }
    EXPECT_EQ(problem_of(plan), p);
    EXPECT_NE(plan.name(), "reference");
    EXPECT_NE(plan.describe(), "");
  }
}

TEST(Plan, ByName) {
  const Problem p = parse_problem("b1 h4/2 s64 d64");
  EXPECT_EQ(make_plan(p, "reference").name(), "reference");
  const std::string sentence = sentence_of([&] { (void)make_plan(p, "cpu.magic"); }, ErrorCode::bad_value);
  EXPECT_TRUE(has(sentence, "implementation must be one of ")) << sentence;
  for (const Implementation* row : plan::implementations()) EXPECT_TRUE(has(sentence, row->name)) << sentence;
}

TEST(Plan, NothingFallsBackToTheReference) {
  const Problem p = parse_problem("b1 h4/2 s64 d576/512 cuda");
  const std::string sentence = sentence_of([&] { (void)make_plan(p); }, ErrorCode::unsupported);
  EXPECT_TRUE(has(sentence, "no implementation accepts \"fwd b1 h4/2 s64 d576/512 fp32 cuda:0\"; ")) << sentence;
  for (const Implementation* row : plan::implementations()) {  // every refusal with its reason
    if (reference::is_reference(*row)) continue;
    EXPECT_TRUE(has(sentence, std::string(row->name) + ": " + why_not(*row, p))) << sentence;
  }
  EXPECT_TRUE(has(sentence_of([&] { (void)make_plan(p, "reference"); }, ErrorCode::unsupported),
                  "reference: requires tensors on the CPU"));
}

TEST(Plan, ValidatesTheProblem) {
  Problem p = parse_problem("b1 h4/2 s64 d64");
  p.heads_kv = 3;
  EXPECT_TRUE(has(sentence_of([&] { (void)make_plan(p); }, ErrorCode::bad_shape), "heads_q (4)"));
  EXPECT_TRUE(has(sentence_of([&] { (void)explain(p); }, ErrorCode::bad_shape), "heads_q (4)"));
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
    const bool chosen = row->name == plan.name();
    const Decision decision = decide(*row, p);
    EXPECT_TRUE(has(text, std::string(chosen ? "* " : "  ") + row->name + ": " +
                              (decision ? decision.state->describe() : "no, " + decision.refusal)))
        << text;
  }
  EXPECT_TRUE(has(text, "(only by name)"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '*'), 1);
}

class Run : public testing::Test {
 protected:
  std::string run_sentence(ErrorCode code) {
    in.poison_outputs();
    in.launch.workspace = {workspace, bytes};
    const std::string s = sentence_of([&] { run(plan, in.tensors, in.launch); }, code);
    EXPECT_EQ(in.buffer(Role::out).all_poison(), s != "");
    return s;
  }
  Inputs in = check::make_inputs(parse_problem("b1 h4/2 s20x30 d16"));
  Plan plan = make_plan(in.problem);
  std::vector<std::byte> memory = std::vector<std::byte>(plan.workspace_bytes() + 128);
  std::byte* workspace = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
  std::size_t bytes = plan.workspace_bytes();
};

TEST_F(Run, RunsWithTheOptionsItWasPlannedFor) { EXPECT_EQ(run_sentence(ErrorCode::ok), ""); }

TEST_F(Run, RefusesOtherTensors) {
  const Tensors planned = in.tensors;
  const auto refused = [&](const char* part) { return has(run_sentence(ErrorCode::bad_shape), part); };
  in.tensors.k.shape[2] = in.tensors.v.shape[2] = 29;
  EXPECT_TRUE(refused("the call must match the plan: s20x30 (got s20x29)"));
  in.tensors = planned;
  std::swap(in.tensors.q.stride[1], in.tensors.q.stride[2]);
  EXPECT_TRUE(refused("strides=q:0,16,320;"));
  in.tensors = planned;
  std::vector<float> lse(80);
  in.tensors.lse = Tensor(lse.data(), DType::f32, {1, 4, 20});
  EXPECT_TRUE(refused("the call must match the plan: no lse (got lse)"));
  in.tensors = planned;
  in.tensors.q.data = nullptr;
  EXPECT_TRUE(
      has(run_sentence(ErrorCode::bad_value), "q must have data for shape [1, 4, 20, 16] (got a null pointer)"));
}

// Side tensors are planned for with their strides.
TEST(RunOn, OtherSideTensorsIsRefused) {
  for (const char* line :
       {"b2 h4/2 s20x30 d16 bias=bf16:bhqk mask=1hqk alibi sinks lse", "h4/2 d16 varlen=3,20/30,1 alibi lse"}) {
    Inputs in = check::make_inputs(parse_problem(line));
    const Plan plan = make_plan(in.problem);
    std::vector<std::byte> memory(plan.workspace_bytes() + 128);
    std::byte* const at = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
    const auto sentence = [&] {
      return sentence_of([&] { run(plan, in.tensors, {.workspace = {at, plan.workspace_bytes()}}); },
                         ErrorCode::bad_shape);
    };
    run(plan, in.tensors, {.workspace = {at, plan.workspace_bytes()}});
    for (const RoleRow& row : kRoleTable) {
      if (!uses(in.problem, row) || row.types == Types::i32 || row.unit_last) continue;
      const Tensors planned = in.tensors;
      if (row.output)
        (in.tensors.*row.output).stride[0] *= 2;
      else
        (in.tensors.*row.input).stride[0] *= 2;
      if (tensor_of(in.tensors, row).shape[0] > 1) {
        EXPECT_TRUE(has(sentence(), std::string(row.name) + "_strides="));
      }
      in.tensors = planned;
    }
  }
}

TEST_F(Run, RefusesAnEmptyPlan) {
  plan = {};
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value), "the plan is empty"));
}

TEST_F(Run, RefusesABadWorkspace) {
  ASSERT_GT(bytes, 0u);
  bytes -= 1;
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value),
                  text("the workspace must have at least ", plan.workspace_bytes(), " bytes (got ", bytes, ")")));
  bytes += 1;
  workspace += 8;
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value), "the workspace must be aligned to 64 bytes (got address "));
  workspace = nullptr;
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value), "aligned to 64"));
}

TEST_F(Run, RefusesTensorsInsideTheWorkspace) {
  std::vector<std::byte> large(plan.workspace_bytes() + (1 << 20));
  workspace = large.data() + (64 - reinterpret_cast<std::uintptr_t>(large.data()) % 64);
  const Tensors own = in.tensors;
  for (const std::size_t inside : {std::size_t{0}, bytes - 4}) {
    in.tensors.out.data = workspace + inside;
    EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value), "out must not share memory with the workspace"));
    in.tensors = own;
    in.tensors.q.data = workspace + inside;
    EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value), "q must not share memory with the workspace"));
    in.tensors = own;
  }
}

TEST_F(Run, RefusesMoreWorkersThanPlanned) {
  const auto wide = make_executor(plan.workers() + 1);
  in.launch.executor = wide.get();
  EXPECT_TRUE(has(run_sentence(ErrorCode::bad_value), text("the executor must have at most ", plan.workers(),
                                                           " workers, as the plan's (got ", plan.workers() + 1, ")")));
}

TEST(Plan, ALineIsExplained) {
  EXPECT_EQ(explain("linear m8 n64 k32 bf16"), explain(parse_problem("linear m8 n64 k32 bf16")));
}

TEST(Plan, APageTableRequiresLengths) {
  Inputs in = check::make_inputs(parse_problem("b2 h2 s1x32 d16 kv=paged:16"));
  EXPECT_EQ(sentence_of([&] { attention(in.tensors); }, ErrorCode::bad_value),
            "page_table requires seqused_k, the number of valid keys of each sequence");
  EXPECT_EQ(sentence_of([&] { (void)problem_of(in.tensors, {}); }, ErrorCode::bad_value),
            "page_table requires seqused_k, the number of valid keys of each sequence");
}

TEST(Plan, ATensorThatIsNotTheOperatorsIsNamed) {
  Inputs in = check::make_inputs(parse_problem("b1 h2 s4 d16"));
  in.tensors.x = in.tensors.q;
  EXPECT_EQ(sentence_of([&] { in.attend(); }, ErrorCode::bad_value), "attention does not accept x; softmax does");
  in.tensors.x = {};
  in.tensors.dout = in.tensors.q;
  EXPECT_EQ(sentence_of([&] { attention(in.tensors); }, ErrorCode::bad_value),
            "attention does not accept dout; attention_backward does");
}

// Partial results join as attention runs: problem, plan, run.
TEST(PlanMerge, IsAnOperatorLikeAttention) {
  const std::vector<float> a(2 * 5 * 3, 1.0f), b(2 * 5 * 3, 4.0f), la(2 * 5, 0.5f), lb(2 * 5, 0.5f);
  std::vector<float> joined(a.size()), lse(la.size());
  Tensors t;
  t.out = {joined.data(), DType::f32, {2, 5, 3}};
  t.lse = {lse.data(), DType::f32, {2, 5}};
  t.outs = {{a.data(), DType::f32, {2, 5, 3}}, {b.data(), DType::f32, {2, 5, 3}}};
  t.lses = {{la.data(), DType::f32, {2, 5}}, {lb.data(), DType::f32, {2, 5}}};
  const Problem p = problem_of(kMerge, t, {});
  EXPECT_EQ(to_string(p), "merge n2 b1 h2 s5 d3 fp32 lse");
  EXPECT_EQ(parse_problem(to_string(p)), p);
  const Plan plan = make_plan(p);
  EXPECT_EQ(plan.name(), "cpu.merge");
  EXPECT_EQ(explain(p),
            "merge n2 b1 h2 s5 d3 fp32 lse\n  cuda.merge: no, requires tensors on a CUDA device\n* cpu.merge: " +
                plan.describe() + "\n");
  run(plan, t);
  for (const float x : joined) EXPECT_FLOAT_EQ(x, 2.5f);
  for (const float x : lse) EXPECT_FLOAT_EQ(x, 0.5f + std::log(2.0f));

  t.outs.push_back(t.outs[0]);
  t.lses.push_back(t.lses[0]);
  EXPECT_TRUE(
      has(sentence_of([&] { run(plan, t); }, ErrorCode::bad_shape), "the call must match the plan: n2 (got n3)"));
  t.q = t.outs[0];
  EXPECT_TRUE(has(sentence_of([&] { (void)problem_of(kMerge, t, {}); }, ErrorCode::bad_value),
                  "merge does not accept q; attention does"));
  EXPECT_TRUE(has(sentence_of([&] { (void)make_plan(p, "cpu.flash.avx2"); }, ErrorCode::bad_value),
                  "implementation must be one of cuda.merge, cpu.merge"));
  Problem on_device = p;
  on_device.device = {DeviceKind::cuda, 0};
  EXPECT_TRUE(has(sentence_of([&] { (void)make_plan(on_device, "cpu.merge"); }, ErrorCode::unsupported),
                  "cpu.merge: it computes on the CPU only"));
}

TEST_F(Run, OneCallEqualsThreeSteps) {
  ASSERT_EQ(run_sentence(ErrorCode::ok), "");
  const auto written = [&] {
    return std::vector<std::byte>(in.buffer(Role::out).data(),
                                  in.buffer(Role::out).data() + in.buffer(Role::out).bytes());
  };
  const auto three_steps = written();
  in.poison_outputs();
  in.launch = {};
  in.attend();
  EXPECT_EQ(written(), three_steps);
}

}  // namespace
}  // namespace onepass
