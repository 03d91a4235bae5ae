// The calls of an append, whose tensors have a type of their own.
#include "onepass/append.hpp"
#include "onepass/explain.hpp"
#include "plan/compute.hpp"
#include "problem/append/append.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::inline v0 {
namespace {

CallOptions described(bool interleaved) {
  CallOptions options;
  options.interleaved = interleaved;
  return options;
}

}  // namespace

void append_kv(const AppendTensors& tensors, bool interleaved, const Launch& launch) {
  plan::compute(Op::append, as_tensors(tensors), described(interleaved), launch);
}

Problem make_problem(const AppendTensors& tensors, bool interleaved) {
  return problem_of(Op::append, as_tensors(tensors), described(interleaved));
}

std::string explain_append(const AppendTensors& tensors, bool interleaved) {
  return explain(make_problem(tensors, interleaved));
}

void run(const Plan& plan, const AppendTensors& tensors, const Launch& launch) {
  run(plan, as_tensors(tensors), launch);
}

}  // namespace onepass::inline v0
