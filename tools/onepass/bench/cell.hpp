// One line of the benchmark: a problem, its contenders, and the ceilings, timed in turn over several rounds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "problem/problem.hpp"
#include "tools/onepass/bench/peer_process.hpp"
#include "tools/onepass/bench/poison.hpp"
#include "tools/onepass/bench/sample.hpp"

namespace onepass::bench {

inline constexpr std::uint64_t kHostSeed = 0, kDeviceSeed = 1;  // of the inputs, cache lengths among them

struct CellSpec {
  int threads = 1;
  std::string implementation;  // empty: the plan's choice
  Problem problem;
  std::vector<Poison> poisons{};

  std::string line() const { return to_string(problem) + to_string(poisons); }
};

struct PeerResult {
  std::string name, note;  // note: why there is no number, or how the peer had to be asked
  double median_s = 0;
  bool runs = true;
  double extra_bytes = 0;  // CUDA: device memory besides inputs and result
};

struct CellResult {
  CellSpec spec;
  std::string implementation;
  std::string refusal;  // why no implementation took it; nothing was timed then
  std::string note;     // how it was timed, if not as its kind is
  double median_s = 0, best_s = 0;
  double finite_s = 0;          // the median of the same call on finite inputs, timed in turn; 0: nothing was poisoned
  double flops = 0, bytes = 0;  // useful work: see work.hpp
  double extra_bytes = 0;       // CUDA: the workspace
  double peak_flops_per_s = 0;  // CPU: fused multiply-adds of all threads; CUDA: a matrix product; 0: not measured
  double read_bytes_per_s = 0;  // CPU: reads, of a softmax a copy; CUDA: a copy, bytes read and written
  std::vector<PeerResult> peers;
};

struct Effort {
  int rounds = 7;
  double seconds = 0.12;  // per contender and round
  std::vector<std::string> peers;
  double pause = 0;  // before every contender's turn, CUDA only
};

// "threads | implementation or - | problem", or a problem alone; empty for comments and blank lines. A problem may be
// followed by poisons (poison.hpp).
// `device` is that of a problem that names none.
std::optional<CellSpec> parse_cell(const std::string& line, Device device = {});
void read_problem(CellSpec& cell, const std::string& line, Device device);  // a problem and its poisons
CellResult run_cell(const CellSpec& spec, const Effort& effort, PeerProcess* peers);

}  // namespace onepass::bench
