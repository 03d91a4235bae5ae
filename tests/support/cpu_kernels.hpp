// Every CPU kernel of an operator, judged on the same inputs.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "problem/roles.hpp"
#include "support/output_bytes.hpp"

namespace onepass::test {

inline std::vector<const Implementation*> cpu_kernels(Op op) {
  auto rows = plan::implementations(op);
  std::erase_if(rows, [](const Implementation* row) { return !std::string_view(row->name).starts_with("cpu."); });
  return rows;
}

// Each of the kernels that accepts the inputs is right, and at least one accepts them.
inline void expect_all_right(std::span<const Implementation* const> kernels, check::Inputs& inputs,
                             std::string_view what) {
  int takers = 0;
  for (const Implementation* row : kernels) {
    const check::Verdict verdict = check::check(*row, inputs);
    takers += verdict.accepted;
    EXPECT_TRUE(verdict.right || !verdict.accepted)
        << row->name << " \"" << to_string(inputs.problem) << "\" " << what << ": " << verdict.sentence;
  }
  EXPECT_GT(takers, 0) << to_string(inputs.problem);
}

// Distributions of scores for derivatives. Not `huge`: P = exp(s - LSE) is nothing where the LSE, fp32, is known to
// +-1e20.
inline constexpr check::Distribution kDerivativeScores[] = {check::Distribution::normal, check::Distribution::rising,
                                                            check::Distribution::one_hot};

// Calls `judge` on the inputs of each line with one element of each of the roles that is NaN or infinite.
inline void with_one_not_finite(std::span<const char* const> lines, std::span<const Role> roles,
                                const std::function<void(check::Inputs&, const std::string& what)>& judge) {
  for (const char* const line : lines) {
    for (const Role role : roles) {
      for (const float value : {NAN, INFINITY, -INFINITY}) {
        check::Inputs inputs = check::make_inputs(parse_problem(line), 3);
        const ConstTensor t = tensor_of(inputs.tensors, row_of(role));
        if (!t.given()) continue;
        std::int64_t at = 0;
        for (int i = 0; i < t.rank; ++i) at += t.shape[i] * (value > 0 ? 2 : 1) / 3 * t.stride[i];
        store_element(check::Inputs::writable<void>(t), t.dtype, at, value);
        inputs.changed();
        judge(inputs, text(row_of(role).name, " has ", value));
      }
    }
  }
}

// The bytes that a call with this number of threads leaves in its outputs.
inline std::string bits_of(const char* line, int threads) {
  check::Inputs inputs = check::make_inputs(parse_problem(line), 2);
  const auto executor = make_executor(threads);
  inputs.poison_outputs();
  inputs.launch.executor = executor.get();
  inputs.attend();
  return output_bytes(inputs);
}

}  // namespace onepass::test
