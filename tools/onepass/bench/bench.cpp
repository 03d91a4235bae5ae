// onepass bench: medians beside the ceilings of the same run and beside peers timed in turn with us.
#include <fstream>
#include <memory>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "problem/grammar/on.hpp"
#include "tools/onepass/bench/report.hpp"
#include "tools/onepass/command.hpp"
#include "tools/onepass/io/output_file.hpp"
#include "tools/onepass/options.hpp"
#include "tools/onepass/streams.hpp"
#include "tools/onepass/target.hpp"

namespace onepass::bench {
namespace {

struct Settings {
  std::string suite, peers_command, json_path, implementation, device, target;
  std::vector<std::string> problems, peers;
  int threads = 1;
  std::optional<int> rounds;
  std::optional<double> seconds;
  double pause = 0.45;
  bool launch = false;
};

// On a device 40 ms are hundreds of launches, and pauses take most of the time.
Effort effort_of(const Settings& s, bool device) {
  return {s.rounds.value_or(device ? 3 : 7), s.seconds.value_or(device ? 0.04 : 0.12), s.peers, s.pause};
}

bool on_device(const CellSpec& cell) { return cell.problem.device.kind == DeviceKind::cuda; }

CellSpec cell_of(const Settings& s, Device device, const std::string& line) {
  CellSpec cell{s.threads, s.implementation, {}};
  read_problem(cell, line, device);
  return cell;
}

std::vector<CellSpec> cells_of(const Settings& s) {
  const Device device = s.device.empty() ? Device{} : cli::device_from(s.device);
  std::vector<CellSpec> cells;
  for (const std::string& line : s.problems) cells.push_back(cell_of(s, device, line));
  if (!s.suite.empty()) {
    std::ifstream file(s.suite);
    if (!file) throw Error(ErrorCode::bad_file, text("the suite '", s.suite, "' cannot be read"));
    for (std::string line; std::getline(file, line);) {
      if (auto cell = parse_cell(line, device)) cells.push_back(*cell);
    }
  }
  for (CellSpec& cell : cells) {
    if (!s.device.empty()) cell.problem.device = device;
    if (cell.implementation.empty()) cell.implementation = s.implementation;
    cli::check_fits(cell.problem, 0);
  }
  if (cells.empty()) throw Error(ErrorCode::bad_value, "nothing to measure: give --suite FILE or --problem \"...\"");
  return cells;
}

void write(const nlohmann::json& all, const std::string& path) {
  if (path.empty()) return;
  io::OutputFile file(path);
  const std::string json = all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  file.write(std::as_bytes(std::span(json)));
  file.commit();
}

void run_launch(const Settings& s) {
  const bool on_host = s.device == "cpu";
  const std::string line = !s.problems.empty() ? s.problems.front()
                           : on_host           ? "fwd b1 h1 s1 d16 fp32"
                                               : "fwd b1 h1 s64 d64 bf16 cuda";
  const Device device = s.device.empty() ? Device{} : cli::device_from(s.device);
  Problem p = parse_problem_on(device, line);
  if (!s.device.empty()) p.device = device;
  const auto other = cli::as_target(p.device, s.target);
  const LaunchCost cost = measure_launch(p, s.implementation);
  print(cost);
  write(nlohmann::json::array({to_json(cost)}), s.json_path);
}

void run(const Settings& s) {
  if (s.launch) return run_launch(s);
  const std::vector<CellSpec> cells = cells_of(s);
  const Device first = cells.front().problem.device;
  for (const CellSpec& cell : cells)
    want(s.target.empty() || cell.problem.device == first, ErrorCode::bad_value, "--target needs one device (got ",
         to_string(first), " and ", to_string(cell.problem.device), ")");
  const auto other = cli::as_target(first, s.target);
  std::unique_ptr<PeerProcess> peers;
  if (!s.peers_command.empty()) peers = std::make_unique<PeerProcess>(s.peers_command);
  std::optional<Ceilings> ceilings;
  nlohmann::json all = nlohmann::json::array();
  Table table(s.peers);
  for (const CellSpec& cell : cells) {
    const Effort effort = effort_of(s, on_device(cell));
    if (on_device(cell) && peers && !ceilings) {
      ceilings = measure_ceilings(cell.problem.device, effort, *peers);
      print(*ceilings);
    }
    CellResult result;
    try {
      result = on_device(cell) ? run_device_cell(cell, effort, ceilings.value_or(Ceilings{}), peers.get())
                               : run_cell(cell, effort, peers.get());
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported || cells.size() == 1) throw;
      result.spec = cell;  // the other cells go on
      result.refusal = e.what();
    }
    table.row(result);
    all.push_back(to_json(result));
    if (other) all.back()["target"] = s.target;
    write(all, s.json_path);  // after every cell: a run that is cut short has not measured for nothing
    cli::flush_output();      // shows the row; an error here ends the run
  }
  table.notes();
}

}  // namespace
}  // namespace onepass::bench

namespace onepass::cli {

void add_bench(const Command& app) {
  auto settings = std::make_shared<bench::Settings>();
  const Command c =
      app.subcommand("bench", "Time problems beside the machine's peaks and other libraries, interleaved");
  c.option("--suite", settings->suite,
           "File of cells, a line each: a problem, or: threads | implementation or - | problem");
  c.option("--problem", settings->problems,
           "A problem line; may be repeated. 'PROBLEM with v=one' puts NaN into v and also times finite inputs");
  c.option("--device", settings->device, "Move all problems to this device: cpu, cuda or cuda:N");
  cli::add_target(c, settings->target);
  c.option("--threads", settings->threads, "Number of threads for --problem").range(1, 1024);
  c.option("--implementation", settings->implementation, "Name of the implementation for cells that do not name one");
  c.option("--rounds", settings->rounds, "Number of rounds; default: 7, on CUDA 3").range(1, 1000);
  c.option("--seconds", settings->seconds, "Time of each contender in each round; default: 0.12, on CUDA 0.04")
      .range(0.0, 60.0);
  c.option("--pause", settings->pause, "Pause before each turn in seconds, on CUDA only; default: 0.45")
      .range(0.0, 60.0);
  c.option("--peers", settings->peers, "Other libraries to time, such as torch onnxruntime, torch-cudnn torch-flash");
  c.option("--peers-command", settings->peers_command,
           "Program that times the peers, such as 'python3 -m bench peers'");
  c.option("--json", settings->json_path, "Also write the results to this file");
  c.flag("--launch", settings->launch, "Measure the host time of one cached call, on CUDA beside a bare kernel launch");
  c.on_run([settings] { bench::run(*settings); });
}

}  // namespace onepass::cli
