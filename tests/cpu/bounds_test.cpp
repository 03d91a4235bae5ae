// A plan of packed sequences is made for bounds of their lengths: it serves all cu_seqlens within them, with the bits
// of a plan that was made for exactly these, and refuses longer ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "check/check.hpp"
#include "onepass/attention.hpp"
#include "plan/implementations.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "support/named_params.hpp"
#include "support/output_bytes.hpp"
#if defined(__x86_64__)
#include "cpu/amx_emulated.hpp"
#include "support/sentence.hpp"
#endif

namespace onepass::check {
namespace {

struct Case {
  const char* name;
  const char* line;
  bool without_bounds;  // the same bits as plans without bounds, which are made for the longest sequence
};

std::int32_t* cu(const ConstTensor& t) { return Inputs::writable<std::int32_t>(t); }

// `batch` lengths from 0 to `most`, and to `total` together.
void draw(std::mt19937_64& random, std::int64_t batch, std::int64_t most, std::int64_t total, std::int32_t* sums) {
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t left = std::min(most, total - sums[b]);
    sums[b + 1] = sums[b] + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(left + 1));
  }
}

class Memory {
 public:
  explicit Memory(const Plan& plan) : bytes_(plan.workspace_bytes() + 128, kMark), size_(plan.workspace_bytes()) {}
  std::span<std::byte> span() {
    void* at = bytes_.data();
    std::size_t space = bytes_.size();
    std::align(64, size_, at, space);
    return {static_cast<std::byte*>(at), size_};
  }
  // False if something was written behind it.
  bool is_whole() {
    const std::span<std::byte> used = span();
    return std::all_of(used.data() + used.size(), bytes_.data() + bytes_.size(),
                       [](std::byte b) { return b == kMark; });
  }

 private:
  static constexpr std::byte kMark{0x5a};
  std::vector<std::byte> bytes_;
  std::size_t size_;
};

Plan plan_of(const Implementation& row, const Problem& problem) {
  Decision decision = decide(row, problem);
  return decision ? Plan(std::move(decision.state)) : Plan();
}

std::string results(Inputs& in, const Plan& plan) {
  in.poison_outputs();
  Memory memory(plan);
  run(plan, in.tensors, {.executor = &serial_executor(), .workspace = memory.span()});
  EXPECT_TRUE(memory.is_whole()) << plan.name() << " wrote behind its workspace";
  return test::output_bytes(in);
}

std::vector<Implementation> rows_of(Op op) {
  std::vector<Implementation> rows;
  for (const Implementation* row : plan::implementations(op))
    if (std::string(row->name).starts_with("cpu.")) rows.push_back(*row);
#if defined(__x86_64__)
  if (op == kForward) rows.push_back(cpu::amx::emulated());
#endif
  return rows;
}

class Bounds : public testing::TestWithParam<Case> {};

TEST_P(Bounds, OnePlanServesAllLengthsWithTheBitsOfExactPlans) {
  Inputs in = make_inputs(parse_problem(GetParam().line), 5);
  const Problem p = in.problem;
  std::mt19937_64 random(7);
  std::vector<std::pair<Implementation, Plan>> plans;
  for (const Implementation& row : rows_of(p.op))
    if (Plan plan = plan_of(row, p); plan.state()) plans.emplace_back(row, plan);
  ASSERT_FALSE(plans.empty());
  for (int trial = 0; trial < 200; ++trial) {
    draw(random, p.batch, p.seq_q, p.total_q, cu(in.tensors.cu_seqlens_q));
    if (p.packed_k()) draw(random, p.batch, p.seq_k, p.total_k, cu(in.tensors.cu_seqlens_k));
    if (p.op == kBackward || trial % 50 == 0) in.changed();
    CallOptions bounded = in.attention, exact = in.attention;
    exact.max_seqlen_q = 0;
    if (p.packed_k()) exact.max_seqlen_k = 0;
    const Problem same_bounds = problem_of(p.op, in.tensors, bounded), none = problem_of(p.op, in.tensors, exact);
    ASSERT_EQ(same_bounds.seq_q, p.seq_q);
    ASSERT_LE(none.seq_q, p.seq_q);
    for (const auto& [row, plan] : plans) {
      const std::string got = results(in, plan);
      if (trial % 50 == 0 && p.op == kForward) {
        const Verdict verdict = judge(in, serial_executor());
        EXPECT_TRUE(verdict.right) << row.name << ": " << verdict.sentence;
      }
      ASSERT_TRUE(got == results(in, plan_of(row, same_bounds))) << row.name << ", " << to_string(same_bounds);
      const Plan own = plan_of(row, none);
      ASSERT_TRUE(own.state());
      if (!GetParam().without_bounds) continue;
      ASSERT_TRUE(got == results(in, own)) << row.name << ", " << to_string(none);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, Bounds,
    testing::Values(
        Case{"Prompts", "b4 h16/8 d32 fp32 varlen=1,2,3,4 s150x150 packed=400:400 causal_bottom_right lse", true},
        Case{"SplitKeys", "b2 h2/1 d16 bf16 varlen=9,1/1500,20 s40x3000 packed=80:4000 lse", false},
        Case{"Decoding", "b6 h8/2 d64 fp32 varlen=1,1,1,1,1,1/3,5,7,9,11,200 s4x900 packed=24:4000 lse", true},
        Case{"ShortKeys", "b16 h16/8 d16 bf16 varlen=1x16/3x16 s2x40 packed=32:500 lse", true},
        Case{"PagedCache", "b3 h4/2 d32 bf16 varlen=3,30,64 s64x256 packed=150:0 kv=paged:32 seqused=90,256,7 lse",
             false},
        Case{"Invariant", "b3 h4/2 d32 fp32 varlen=3,30,64/5,80,99 s64x300 packed=150:700 batch_invariant lse", true},
        Case{"Backward", "bwd b3 h24/24 d16 fp32 varlen=3,30,64/5,80,99 s64x100 packed=150:300 causal_top_left", true},
        Case{"BackwardOfFewHeads", "bwd b2 h4/2 d16 bf16 varlen=3,30/5,80 s600x700 packed=500:600", false}),
    [](const auto& x) { return x.param.name; });

struct Wrong {
  const char* name;
  std::function<void(Inputs&)> spoil;
  const char* sentence;
};
class WrongLengths : public testing::TestWithParam<Wrong> {};

TEST_P(WrongLengths, AreRefusedAndWriteNothing) {
  Inputs in = make_inputs(parse_problem("b2 h2 d8 varlen=3,4/5,6 s5x8 packed=12:20 lse"), 2);
  const Plan plan = make_plan(in.problem, {}, &serial_executor());
  Memory memory(plan);
  attention(in.tensors, in.attention, {.executor = &serial_executor()});  // and its plan is kept
  GetParam().spoil(in);
  in.poison_outputs();
  const std::string before = test::output_bytes(in);
  const std::function<void()> calls[] = {
      [&] { run(plan, in.tensors, {.executor = &serial_executor(), .workspace = memory.span()}); },
      [&] { attention(in.tensors, in.attention, {.executor = &serial_executor()}); },
      [&] { (void)problem_of(in.tensors, in.attention); }};
  for (const auto& call : calls) EXPECT_EQ(test::sentence_of(call), GetParam().sentence);
  EXPECT_TRUE(before == test::output_bytes(in));
}
INSTANTIATE_TEST_SUITE_P(
    Cpu, WrongLengths,
    testing::Values(Wrong{"LongQueries", [](Inputs& in) { cu(in.tensors.cu_seqlens_q)[2] = 9; },
                          "max_seqlen_q must be at least 6, the length of the longest sequence (got 5)"},
                    Wrong{"LongKeys", [](Inputs& in) { cu(in.tensors.cu_seqlens_k)[2] = 14; },
                          "max_seqlen_k must be at least 9, the length of the longest sequence (got 8)"},
                    Wrong{"Falling", [](Inputs& in) { cu(in.tensors.cu_seqlens_q)[2] = 2; },
                          "cu_seqlens_q[2] must be at least 3, the entry before it (got 2)"},
                    Wrong{"Beyond", [](Inputs& in) { cu(in.tensors.cu_seqlens_k)[2] = 21; },
                          "cu_seqlens_k[2] must be at most 20, the tokens of k (got 21)"},
                    Wrong{"NotFrom0", [](Inputs& in) { cu(in.tensors.cu_seqlens_k)[0] = 1; },
                          "cu_seqlens_k[0] must be 0 (got 1)"}),
    [](const auto& x) { return x.param.name; });

}  // namespace
}  // namespace onepass::check
