// One function per command; each lives in a file of its name. main.cpp only calls them.
#pragma once
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "problem/problem.hpp"
#include "tools/onepass/options.hpp"

namespace onepass::cli {

void add_info(const Command& app);
void add_check(const Command& app);
void add_run(const Command& app);
void add_run_operators(const Command& run);  // commands of `run`
void add_append(const Command& app);
void add_explain(const Command& app);
void add_ladder(const Command& app);
void add_bench(const Command& app);
void add_prebuild(const Command& app);
void add_tune(const Command& app);

// 0: done; 1: a check found a wrong result; 2: an error, with one sentence on stderr.
inline constexpr int kWrongResult = 1, kError = 2;

// The words of a problem, quoted as one argument or not.
std::string line_of(const std::vector<std::string>& words);
Problem problem_from(const std::vector<std::string>& words);
// "cpu", "cuda", "cuda:1"; throws bad_value otherwise.
Device device_from(const std::string& name);
// Throws out_of_memory if the tensors of a problem and `more` bytes per output do not fit this machine's memory:
// a slip of the pen should not drive it into swapping.
void check_fits(const Problem& problem, double bytes_per_output);
// Prints JSON with an indent of 2 and a newline.
void print_json(const nlohmann::ordered_json& value);

}  // namespace onepass::cli
