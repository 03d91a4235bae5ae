// With batch_invariant a row has one result on the CPU (support/one_result.hpp).
#include "support/one_result.hpp"

#include <cstdlib>

#include "plan/implementations.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/implementation.hpp"

namespace onepass {
namespace {

using namespace one_result;

// The first row of an instruction set that takes the problem, or of the whole list.
std::string implementation_of(const Problem& problem, const std::string& isa) {
  if (isa.empty()) return {};
  for (const char* family : {"cpu.decode.", "cpu.flash."}) {
    for (const Implementation* row : plan::implementations())
      if (row->name == family + isa && decide(*row, problem)) return row->name;
  }
  return "none";
}

void attend(const Tensors& t, const Call& call) {
  const auto executor = make_executor(call.threads);
  const std::string name = implementation_of(problem_of(t, call.attention), call.isa);
  attention(t, call.attention, {.executor = executor.get()}, name);
}

class OneResult : public testing::TestWithParam<const char*> {};

TEST_P(OneResult, WhateverSurroundsARow) {
  const char* const asked = std::getenv("ONEPASS_ONE_RESULT_CALLS");
  expect_one_result(asked ? std::atoi(asked) : 150, GetParam(),
                    {{DType::f32, DType::f16, DType::bf16}, {16, 30, 64, 80}, true, true, true}, attend);
}

std::vector<const char*> instruction_sets() {
  std::vector<const char*> sets{""};  // the ordered list
  const Problem any = parse_problem("s1x8 d8");
  for (const char* isa : {"avx512", "avx2", "baseline"})
    if (implementation_of(any, isa) != "none") sets.push_back(isa);
  return sets;
}
INSTANTIATE_TEST_SUITE_P(Cpu, OneResult, testing::ValuesIn(instruction_sets()),
                         [](const auto& x) { return *x.param ? std::string(x.param) : std::string("list"); });

// The shapes of a defect in engines: 19,802 keys in pages of 16, beside a prompt of five rows.
TEST(OneResult, ADecodingRowBesideAPrompt) {
  Random r{std::mt19937_64(3)};
  const Sample s(r, 1, 19802, 14, 2, 64, 64, DType::bf16), prompt(r, 300, 300, 14, 2, 64, 64, DType::bf16);
  Call call;
  call.keys = Keys::pages, call.spare = 2000;
  call.attention = {.band = {.causal = true, .align = Align::bottom_right}};
  call.attention.batch_invariant = true;
  const Result alone = run(r, {{&s, 0, 1, 19802}}, call, attend);
  for (const std::int64_t rows : {1, 2, 4, 5, 17, 300}) {
    const Result beside = run(r, {{&prompt, 0, rows, rows}, {&s, 0, 1, 19802}}, call, attend);
    EXPECT_TRUE(same(s, alone, 1, 0, beside, rows + 1, rows, 1)) << rows;
  }
}

}  // namespace
}  // namespace onepass
