// onepass bench: medians beside the ceilings of the same run and beside peers timed in turn with us.
#include <fstream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "onepass/bench/cell.hpp"
#include "onepass/command.hpp"
#include "onepass/error.hpp"

namespace onepass::bench {
namespace {

struct Settings {
  std::string suite, peers_command, json_path;
  std::vector<std::string> problems;
  std::string implementation;
  int threads = 1;
  Effort effort;
};

std::vector<CellSpec> cells_of(const Settings& s) {
  std::vector<CellSpec> cells;
  for (const std::string& line : s.problems) cells.push_back({s.threads, s.implementation, parse_problem(line)});
  if (!s.suite.empty()) {
    std::ifstream file(s.suite);
    if (!file) throw Error(ErrorCode::bad_file, text("the suite '", s.suite, "' cannot be read"));
    for (std::string line; std::getline(file, line);) {
      if (auto cell = parse_cell(line)) cells.push_back(*cell);
    }
  }
  for (const CellSpec& cell : cells) cli::check_fits(cell.problem, 0);
  if (cells.empty()) throw Error(ErrorCode::bad_value, "nothing to measure: give --suite FILE or --problem \"...\"");
  return cells;
}

std::string share(double part, double whole) { return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : std::string("-"); }

void print_header(const std::vector<std::string>& peers) {
  fmt::print("{:>3} {:<58} {:<18} {:>10} {:>9} {:>7} {:>9} {:>7}", "thr", "problem", "implementation", "median ms", "GFLOP/s", "of FMA", "GB/s K+V", "of read");
  for (const std::string& peer : peers) fmt::print(" {:>18}", peer);
  fmt::print("\n");
}

void print_row(const CellResult& r) {
  const bool reads = r.read_bytes_per_s > 0;
  fmt::print("{:>3} {:<58} {:<18} {:>10.3f} {:>9.1f} {:>7} {:>9} {:>7}", r.spec.threads, to_string(r.spec.problem), r.implementation,
             1e3 * r.median_s, 1e-9 * r.flops / r.median_s, share(r.flops / r.median_s, r.fma_flops_per_s),
             reads ? fmt::format("{:.1f}", 1e-9 * r.bytes / r.median_s) : "-", share(r.bytes / r.median_s, r.read_bytes_per_s));
  for (const PeerResult& peer : r.peers) {
    fmt::print(" {:>18}", peer.median_s > 0 ? fmt::format("{:.3f} ms {:.2f}x", 1e3 * peer.median_s, peer.median_s / r.median_s) : peer.note.substr(0, 18));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

nlohmann::json to_json(const CellResult& r) {
  nlohmann::json j = {{"problem", to_string(r.spec.problem)}, {"threads", r.spec.threads}, {"implementation", r.implementation},
                      {"median_s", r.median_s}, {"best_s", r.best_s}, {"flops", r.flops}, {"kv_bytes", r.bytes},
                      {"fma_peak_flops_per_s", r.fma_flops_per_s}, {"read_bytes_per_s", r.read_bytes_per_s}};
  for (const PeerResult& peer : r.peers) {
    nlohmann::json& entry = j["peers"][peer.name];
    if (peer.median_s > 0) entry = {{"median_s", peer.median_s}, {"times_ours", peer.median_s / r.median_s}};
    else entry = {{"missing", peer.note}};
  }
  return j;
}

void run(const Settings& s) {
  const std::vector<CellSpec> cells = cells_of(s);
  std::unique_ptr<PeerProcess> peers;
  if (!s.peers_command.empty()) peers = std::make_unique<PeerProcess>(s.peers_command);
  nlohmann::json all = nlohmann::json::array();
  print_header(s.effort.peers);
  for (const CellSpec& cell : cells) {
    const CellResult result = run_cell(cell, s.effort, peers.get());
    print_row(result);
    all.push_back(to_json(result));
  }
  if (s.json_path.empty()) return;
  std::ofstream file(s.json_path);
  file << all.dump(2) << "\n";
  if (!file.flush()) throw Error(ErrorCode::bad_file, text("'", s.json_path, "' cannot be written"));
}

}  // namespace
}  // namespace onepass::bench

namespace onepass::cli {

void add_bench(CLI::App& app) {
  auto settings = std::make_shared<bench::Settings>();
  CLI::App* c = app.add_subcommand("bench", "Time problems beside the machine's ceilings and beside peers, interleaved");
  c->add_option("--suite", settings->suite, "file of cells: threads | implementation or - | problem");
  c->add_option("--problem", settings->problems, "a problem line; may be repeated");
  c->add_option("--threads", settings->threads, "threads for --problem")->check(CLI::Range(1, 1024));
  c->add_option("--implementation", settings->implementation, "by name, for --problem");
  c->add_option("--rounds", settings->effort.rounds, "rounds of turns")->check(CLI::Range(1, 1000));
  c->add_option("--seconds", settings->effort.seconds, "time of each contender in each round")->check(CLI::Range(0.0, 60.0));
  c->add_option("--peers", settings->effort.peers, "peers to time beside us, such as torch onnxruntime");
  c->add_option("--peers-command", settings->peers_command, "the program that times them, such as 'python3 bench/peers.py'");
  c->add_option("--json", settings->json_path, "also write the results here");
  c->callback([settings] { bench::run(*settings); });
}

}  // namespace onepass::cli
