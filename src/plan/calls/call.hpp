// A call of any operator, which the tensors and options of each become.
#pragma once
#include <string>
#include <string_view>

#include "plan/compute.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::plan {

struct Call {
  Op op;
  Tensors tensors{};
  CallOptions options{};
};

inline Problem problem_of(const Call& c) { return problem_of_call(c.op, c.tensors, c.options); }
inline Plan plan_of(const Call& c, std::string_view implementation, const Executor* executor) {
  const Problem problem = problem_of(c);
  check_apart(c.op, c.tensors);  // as in run(): no plan for tensors that it would refuse
  return make_plan(problem, implementation, executor);
}
inline std::string explained(const Call& c) { return explain(problem_of(c), &c.tensors); }
inline void compute(const Call& c, const Launch& launch, std::string_view implementation = {}) {
  compute(c.op, c.tensors, c.options, launch, implementation);
}

}  // namespace onepass::plan
