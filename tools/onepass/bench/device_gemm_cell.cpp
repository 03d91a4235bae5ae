// A linear layer on a CUDA device beside its peers: each contender's calls in a graph, over copies of w
// (gemm_contender.hpp). Beside the peers of another process there are ours by name, such as cuda.cublas, and `read`,
// which only reads w.
#include <chrono>
#include <functional>
#include <list>
#include <optional>
#include <thread>

#include "onepass/error.hpp"
#include "tools/onepass/bench/device_cell.hpp"
#include "tools/onepass/bench/gemm_contender.hpp"
#include "tools/onepass/bench/peer_turns.hpp"
#include "tools/onepass/bench/work.hpp"

namespace onepass::bench {
namespace {

// One peer, wherever it runs.
struct Peer {
  std::function<void(double)> collect;
  std::function<PeerResult()> result;
};

template <class Contender>
Peer in_this_process(const std::string& name, std::list<Contender>& all, auto&&... arguments) {
  try {
    Contender& c = all.emplace_back(arguments...);
    return {[&](double seconds) { c.collect(seconds); },
            [&c, name] { return PeerResult{name, c.note(), c.median(), true, 0}; }};
  } catch (const Error& e) {
    return {[](double) {},
            [name, why = std::string(e.what())] { return PeerResult{name, "refused: " + why, 0, false, 0}; }};
  }
}

}  // namespace

CellResult run_gemm_cell(const CellSpec& spec, const Effort& effort, const Ceilings& ceilings, PeerProcess* peers) {
  const Problem& p = spec.problem;
  Problem any = p;
  any.op = kLinear;  // which every kernel of ours computes
  DeviceTimer timer(cuda::device_facts(p.device.index));
  Matrices matrices(p);
  GemmContender ours(p, spec.implementation, matrices, serial_executor(), &timer);
  std::list<GemmContender> by_name;
  std::list<ReadContender> reading;
  std::list<PeerTurns> asked;
  std::vector<Peer> all;
  for (const std::string& name : effort.peers) {
    if (name == "read") {
      all.push_back(in_this_process(name, reading, p, matrices, timer));
    } else if (name.starts_with("cuda.")) {
      all.push_back(in_this_process(name, by_name, any, name, matrices, serial_executor(), &timer));
    } else {
      PeerTurns& turns = asked.emplace_back(name, p, peers);
      all.push_back({[&](double seconds) { turns.runs() ? turns.collect(seconds) : void(); },
                     [&turns] { return turns.result(); }});
    }
  }
  const auto pause = [&] { std::this_thread::sleep_for(std::chrono::duration<double>(effort.pause)); };
  for (int round = 0; round < effort.rounds; ++round) {
    pause();
    ours.collect(effort.seconds);
    for (const Peer& peer : all) {
      pause();
      peer.collect(effort.seconds);
    }
  }
  CellResult result;
  result.spec = spec;
  result.implementation = ours.plan().name();
  const Work work = work_of(p);
  result.flops = work.flops, result.bytes = work.bytes;
  result.extra_bytes = static_cast<double>(ours.plan().workspace_bytes());
  result.peak_flops_per_s = ceilings.matmul_flops_per_s;
  result.read_bytes_per_s = ceilings.copy_bytes_per_s;
  result.note = ours.note();
  result.median_s = ours.median();
  result.best_s = ours.sample().best();
  for (const Peer& peer : all) result.peers.push_back(peer.result());
  return result;
}

}  // namespace onepass::bench
