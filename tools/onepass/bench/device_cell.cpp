#include "tools/onepass/bench/device_cell.hpp"
#include "base/text.hpp"
#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"

#include <chrono>
#include <list>
#include <optional>
#include <thread>

#include "onepass/attention.hpp"
#include "plan/compute.hpp"
#include "plan/plan.hpp"
#include "tools/onepass/bench/device_timer.hpp"
#include "tools/onepass/bench/launch_cost.hpp"
#include "tools/onepass/bench/peaks.hpp"
#include "tools/onepass/bench/peer_turns.hpp"
#include "tools/onepass/bench/work.hpp"

namespace onepass::bench {
namespace {

void pause(const Effort& effort) { std::this_thread::sleep_for(std::chrono::duration<double>(effort.pause)); }

// A plan of a problem on the device, ready to be run again and again on one stream.
struct Ready {
  DeviceInputs inputs;
  Plan plan;
  DeviceMemory workspace;
  Launch launch;
  std::string name;

  Ready(const Problem& problem, const std::string& implementation, cuda::Stream stream,
        const std::vector<Poison>& poisons = {})
      : inputs(problem, poisons),
        plan(make_plan(inputs.problem, implementation)),
        workspace(cuda::device_facts(problem.device.index), plan.workspace_bytes()),
        launch{.stream = stream, .workspace = {reinterpret_cast<std::byte*>(workspace.at), plan.workspace_bytes()}},
        name(implementation) {}
  void run() const { onepass::run(plan, inputs.tensors, launch); }
  void call() const {
    plan::compute(inputs.problem.op, inputs.tensors, inputs.attention, {.stream = launch.stream}, name);
  }
};

double median(std::vector<double> v) { return Sample{std::move(v)}.median(); }

}  // namespace

Ceilings measure_ceilings(Device device, const Effort& effort, PeerProcess& peers) {
  const std::string name_of_device = cuda::device_facts(device.index).name;
  const auto ask = [&](const char* name, const char* unit) {
    std::vector<double> rates;
    for (int round = 0; round < effort.rounds; ++round) {
      const auto answer = peers.ask(text("ceiling ", name, " ", to_string(device), " ", effort.seconds));
      if (!answer.contains(unit)) return 0.0;
      if (round > 0 || effort.rounds == 1) rates.push_back(answer[unit].get<double>());  // the first made its inputs
      pause(effort);
    }
    return median(rates);
  };
  const double matmul = ask("matmul", "flops_per_s");
  return {name_of_device, matmul, matmul > 0 ? ask("copy", "bytes_per_s") : 0};
}

CellResult run_device_cell(const CellSpec& spec, const Effort& effort, const Ceilings& ceilings, PeerProcess* peers) {
  const Problem& p = spec.problem;
  if (p.op->matrices) return run_gemm_cell(spec, effort, ceilings, peers);
  DeviceTimer timer(cuda::device_facts(p.device.index));
  const Ready ready(p, spec.implementation, timer.stream(), spec.poisons);
  std::optional<Ready> finite;
  if (!spec.poisons.empty()) finite.emplace(p, spec.implementation, timer.stream());
  CellResult result;
  result.spec = spec;
  result.implementation = ready.plan.name();
  const Work work = work_of(p);
  result.flops = work.flops, result.bytes = work.bytes;
  result.extra_bytes = static_cast<double>(ready.plan.workspace_bytes());
  result.peak_flops_per_s = ceilings.matmul_flops_per_s;
  result.read_bytes_per_s = ceilings.copy_bytes_per_s;

  std::list<PeerTurns> all;
  for (const std::string& peer : effort.peers) all.emplace_back(peer, with_lengths(p), peers);
  timer.times(0, [&] { ready.run(); });  // compiles or loads the kernel

  Sample ours, without_poison;
  const auto collect = [&](Sample& sample, const Ready& contender) {
    pause(effort);
    for (const double t : timer.times(effort.seconds, [&] { contender.run(); })) sample.seconds.push_back(t);
  };
  for (int round = 0; round < effort.rounds; ++round) {
    collect(ours, ready);
    if (finite) collect(without_poison, *finite);
    for (PeerTurns& peer : all) {
      if (!peer.runs()) continue;
      pause(effort);
      peer.collect(effort.seconds);
    }
  }
  result.median_s = ours.median();
  result.best_s = ours.best();
  result.finite_s = without_poison.median();
  for (const PeerTurns& peer : all) result.peers.push_back(peer.result());
  return result;
}

LaunchCost measure_device_launch(const Problem& p, const std::string& implementation) {
  const cuda::DeviceFacts& device = cuda::device_facts(p.device.index);
  const cuda::ContextScope scope(device);
  DeviceTimer timer(device);
  const cuda::Stream stream = timer.stream();
  const Ready ready(p, implementation, stream);
  // 1 KiB of parameters, as four tensor maps and what else a forward kernel is given.
  const cuda::KernelProgram program = {"cuda/device/types.cuh", "empty",
                                       "struct Parameters { char bytes[1024]; };\n"
                                       "extern \"C\" __global__ void empty(const __grid_constant__ Parameters p) {}",
                                       cuda::arch_of(device), ""};
  const cuda::Kernel& empty = cuda::kernel_for(device.ordinal, program, 0, stream);
  char parameters[1024] = {};
  void* arguments[] = {parameters};

  // Batches of 100 stay below the driver's queue of 1024 launches, behind which a launch waits for the device.
  constexpr int kBatches = 50, kBatch = 100;
  const auto host_seconds = [&](auto call) {
    std::vector<double> each;
    for (int batch = 0; batch < kBatches; ++batch) {
      const double from = wall_seconds();
      for (int i = 0; i < kBatch; ++i) call();
      each.push_back((wall_seconds() - from) / kBatch);
      cuda::check_cuda(cuda::driver()->stream_synchronize(stream), "cuStreamSynchronize");
    }
    return median(each);
  };
  LaunchCost cost{to_string(p), std::string(ready.plan.name())};
  ready.run();
  cost.bare_s = host_seconds([&] { cuda::launch(empty, 1, 128, 0, stream, arguments); });
  cost.run_s = host_seconds([&] { ready.run(); });
  cost.attention_s = host_seconds([&] { ready.call(); });
  return cost;
}

}  // namespace onepass::bench
