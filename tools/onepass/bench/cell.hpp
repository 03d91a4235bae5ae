// One line of the benchmark: a problem, its contenders, and the ceilings, timed in turn over several rounds.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "onepass/bench/peer_process.hpp"
#include "onepass/bench/sample.hpp"
#include "onepass/problem.hpp"

namespace onepass::bench {

struct CellSpec {
  int threads = 1;
  std::string implementation;   // empty: the plan's choice
  Problem problem;
};

struct PeerResult {
  std::string name, note;       // note: why there is no number
  double median_s = 0;
};

struct CellResult {
  CellSpec spec;
  std::string implementation;
  double median_s = 0, best_s = 0;
  double flops = 0, bytes = 0;  // useful work: visible pairs * 2 * (dim_qk + dim_v); K and V read once
  double fma_flops_per_s = 0;   // all threads; 0 where the instruction set has no measured peak
  double read_bytes_per_s = 0;
  std::vector<PeerResult> peers;
};

struct Effort {
  int rounds = 7;
  double seconds = 0.12;        // per contender and round
  std::vector<std::string> peers;
};

// "threads | implementation or - | problem"; empty for comments and blank lines.
std::optional<CellSpec> parse_cell(const std::string& line);
CellResult run_cell(const CellSpec& spec, const Effort& effort, PeerProcess* peers);

double visible_pairs(const Problem& problem);   // over batch and query heads, by the band alone

}  // namespace onepass::bench
