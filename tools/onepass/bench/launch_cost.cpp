#include "tools/onepass/bench/launch_cost.hpp"

#include <cstddef>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "check/inputs.hpp"
#include "onepass/onepass.hpp"
#include "plan/compute.hpp"
#include "plan/plan.hpp"
#include "tools/onepass/bench/cell.hpp"
#include "tools/onepass/bench/peaks.hpp"
#include "tools/onepass/bench/sample.hpp"

namespace onepass::bench {
namespace {

// One thread, timed by its CPU time: other load on the machine disturbs that least.
LaunchCost measure_host_launch(const Problem& p, const std::string& implementation) {
  const check::Inputs inputs = check::make_inputs(p, kHostSeed);
  const Plan plan = make_plan(inputs.problem, implementation, &serial_executor());
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> workspace(ceil_div(plan.workspace_bytes(), sizeof(Line)));
  const Launch one{.executor = &serial_executor()};
  Launch planned = one;
  planned.workspace = {workspace.data()->bytes, plan.workspace_bytes()};

  // The two take turns, so that a slower clock of the machine is slower for both.
  constexpr int kTurns = 200, kCalls = 500;
  Sample run_s, call_s;
  const auto collect = [&](Sample& into, const auto& call) {
    const double from = thread_seconds();
    for (int i = 0; i < kCalls; ++i) call();
    into.seconds.push_back((thread_seconds() - from) / kCalls);
  };
  for (int turn = 0; turn < kTurns; ++turn) {
    collect(run_s, [&] { run(plan, inputs.tensors, planned); });
    collect(call_s, [&] { plan::compute(p.op, inputs.tensors, inputs.attention, one, implementation); });
  }
  return {to_string(p), std::string(plan.name()), 0, run_s.median(), call_s.median()};
}

}  // namespace

LaunchCost measure_launch(const Problem& p, const std::string& implementation) {
  return p.device.kind == DeviceKind::cuda ? measure_device_launch(p, implementation)
                                           : measure_host_launch(p, implementation);
}

}  // namespace onepass::bench
