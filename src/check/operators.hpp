// The part of each operator in check: how its inputs are drawn, and its results judged.
#pragma once
#include <cstdint>

#include "check/inputs.hpp"
#include "check/verdict/verdict.hpp"

namespace onepass::check {

struct CheckedOperator {
  Op op;
  // Into tensors that have memory.
  void (*draw)(const Problem& problem, const Tensors& tensors, std::uint64_t seed, Distribution distribution);
  Verdict (*judge)(Inputs& inputs, Executor& executor, DeviceKind computed_on);
};
const CheckedOperator& checked(Op op);

}  // namespace onepass::check
