// One function per command; each lives in a file of its name. main.cpp only calls them.
#pragma once
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "onepass/problem.hpp"

namespace onepass::cli {

void add_info(CLI::App& app);
void add_check(CLI::App& app);
void add_run(CLI::App& app);
void add_explain(CLI::App& app);
void add_ladder(CLI::App& app);
void add_bench(CLI::App& app);

// 0: done; 1: a check found a wrong result; 2: an error, with one sentence on stderr.
inline constexpr int kWrongResult = 1, kError = 2;

// The words of a problem, quoted as one argument or not.
Problem problem_from(const std::vector<std::string>& words);
// Prints JSON with an indent of 2 and a newline.
void print_json(const nlohmann::ordered_json& value);

}  // namespace onepass::cli
