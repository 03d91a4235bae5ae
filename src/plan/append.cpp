// append_kv: checked, then computed where the tensors are.
#include "problem/append/append.hpp"
#include "base/guarded_executor.hpp"
#include "cpu/append/append.hpp"
#include "cuda/append/host.hpp"

namespace onepass::inline v0 {

void append_kv(const AppendTensors& tensors, bool interleaved, const Launch& launch) {
  const AppendProblem problem = append_problem_of(tensors, interleaved);
  if (problem.device.kind == DeviceKind::cuda)
    return cuda::append_kv(problem, tensors, static_cast<cuda::Stream>(launch.stream));
  Executor& host = launch.executor ? *launch.executor : default_executor();
  GuardedExecutor executor(host, workers_of(host));
  cpu::append_kv(problem, tensors, executor);
}

}  // namespace onepass::inline v0
