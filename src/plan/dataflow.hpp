// Which kernel a linear gets on this machine: by the file of crossovers, else by its shape.
#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "problem/gemm/dataflow.hpp"
#include "problem/problem.hpp"

namespace onepass::plan {

// ONEPASS_DATAFLOW, else linear.txt in the cache's directory; empty: none can be named.
std::filesystem::path crossover_file();
// Those of the file, which is a cache: what cannot be read is left out, and `refusal` says so. None without a file.
Crossovers read_crossovers(const std::filesystem::path& file);

// "NVIDIA H200", "AMD EPYC 9654 96-Core Processor, 16 threads": what crossovers hold for. Throws Error where the
// problem's device is not there.
std::string machine_of(const Problem& problem, int workers);

struct Chosen {
  Dataflow dataflow;
  Crossover at;
  bool measured;  // else by the shape alone
};
Chosen choose_dataflow(const Problem& problem, const std::string& machine, std::span<const CrossoverRow> rows);
// By the file, read once in a process.
Chosen choose_dataflow(const Problem& problem, int workers);
std::string why(const Problem& problem, int workers,
                const Chosen& chosen);  // a line, and a second one if a part of the file is not used

}  // namespace onepass::plan
