// `onepass tune`: measures where linear() should go from one kernel to the next, and keeps it in a file.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "base/text.hpp"
#include "onepass/executor.hpp"
#include "plan/dataflow.hpp"
#include "plan/implementations.hpp"
#include "problem/attention/arguments.hpp"
#include "tools/onepass/bench/device_timer.hpp"
#include "tools/onepass/bench/gemm_contender.hpp"
#include "tools/onepass/command.hpp"
#include "tools/onepass/io/output_file.hpp"
#include "tools/onepass/streams.hpp"

namespace onepass::cli {
namespace {

struct Shape {
  std::int64_t n, k;
  friend bool operator==(const Shape&, const Shape&) = default;
};

// [out, in] of the linear layers of models, queries, keys and values as one, gate and up each by itself.
struct Model {
  const char* name;
  std::vector<Shape> shapes;
};
const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"llama2-7b", {{12288, 4096}, {4096, 4096}, {11008, 4096}, {4096, 11008}}},
      {"llama3-8b", {{6144, 4096}, {4096, 4096}, {14336, 4096}, {4096, 14336}}},
  };
  return all;
}

constexpr std::int64_t kRows[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};

struct Flags {
  std::vector<std::string> shapes, models;
  std::string dtype = "bf16", device = "cpu", file;
  int threads = 0, rounds = 3;
  double seconds = 0.02;
  std::int64_t most_rows = 128;
  bool dry = false, json = false;
};

std::vector<Shape> shapes_of(const Flags& flags) {
  std::vector<Shape> shapes;
  const auto add = [&](const Shape& s) {
    if (std::ranges::find(shapes, s) == shapes.end()) shapes.push_back(s);
  };
  for (const std::string& name : flags.models) {
    const auto model = std::ranges::find_if(models(), [&](const Model& m) { return m.name == name; });
    std::string names;
    for (const Model& m : models()) names += (names.empty() ? "" : ", ") + std::string(m.name);
    want(model != models().end(), ErrorCode::bad_value, "--model must be one of ", names, " (got '", name, "')");
    for (const Shape& s : model->shapes) add(s);
  }
  for (const std::string& text_ : flags.shapes) {
    Shape s{};
    char rest = 0;
    const int found = std::sscanf(text_.c_str(), "%ldx%ld%c", &s.n, &s.k, &rest);
    want(found == 2 && s.n > 0 && s.k > 0, ErrorCode::bad_value,
         "--shape must be columns x row length, such as 4096x11008 (got '", text_, "')");
    add(s);
  }
  want(!shapes.empty(), ErrorCode::bad_value, "nothing to measure: give --shape 4096x11008 or --model llama2-7b");
  return shapes;
}

// The seconds of each dataflow's best implementation that accepts this number of rows; infinite where none does. notes:
// how what could not be timed as it should was timed.
Timing time_rows(const Problem& p, bench::Matrices& matrices, const Flags& flags, Executor& executor,
                 bench::DeviceTimer* timer, std::set<std::string>& notes) {
  std::vector<std::pair<Dataflow, std::unique_ptr<bench::GemmContender>>> all;
  for (const Implementation* row : plan::implementations(kLinear)) {
    if (row->dataflow == Dataflow::none) continue;
    const bool there = std::ranges::any_of(all, [&](const auto& c) { return c.first == row->dataflow; });
    if (!there && decide(*row, p, executor.workers()))
      all.emplace_back(row->dataflow, std::make_unique<bench::GemmContender>(p, row->name, matrices, executor, timer));
  }
  for (int round = 0; round < flags.rounds; ++round)
    for (const auto& [dataflow, contender] : all) contender->collect(flags.seconds);
  Timing t{p.m, Timing::kNone, Timing::kNone, Timing::kNone};
  for (const auto& [dataflow, contender] : all) {
    (dataflow == Dataflow::gemv        ? t.gemv
     : dataflow == Dataflow::flat_gemm ? t.flat_gemm
                                       : t.gemm) = contender->median();
    if (!contender->note().empty()) notes.insert(text(contender->plan().name(), ": ", contender->note()));
  }
  return t;
}

std::string microseconds(double s) { return std::isinf(s) ? "-" : fmt::format("{:.2f}", 1e6 * s); }

void print_rows(const CrossoverRow& row, const std::vector<Timing>& timings) {
  fmt::print("{} [{}, {}] on {}\n{:>6} {:>12} {:>12} {:>12}  taken\n", name_of(row.dtype), row.n, row.k, row.machine,
             "m", "GEMV us", "flat us", "GEMM us");
  for (const Timing& t : timings)
    fmt::print("{:>6} {:>12} {:>12} {:>12}  {}\n", t.m, microseconds(t.gemv), microseconds(t.flat_gemm),
               microseconds(t.gemm), name_of(choose(t.m, row.at)));
  flush_output();
}

nlohmann::ordered_json as_json(const CrossoverRow& row, const std::vector<Timing>& timings) {
  const auto seconds = [](double s) { return std::isinf(s) ? nlohmann::ordered_json() : nlohmann::ordered_json(s); };
  const auto from = [](std::int64_t m) {
    return m == Crossover::kNever ? nlohmann::ordered_json() : nlohmann::ordered_json(m);
  };
  nlohmann::ordered_json j{{"machine", row.machine},
                           {"dtype", name_of(row.dtype)},
                           {"n", row.n},
                           {"k", row.k},
                           {"flat_gemm_from", from(row.at.m1)},
                           {"gemm_from", from(row.at.m2)},
                           {"timings", nlohmann::ordered_json::array()}};
  for (const Timing& t : timings)
    j["timings"].push_back(
        {{"m", t.m}, {"gemv_s", seconds(t.gemv)}, {"flat_gemm_s", seconds(t.flat_gemm)}, {"gemm_s", seconds(t.gemm)}});
  return j;
}

void keep(const std::vector<CrossoverRow>& measured, const std::string& file) {
  std::vector<CrossoverRow> rows = plan::read_crossovers(file).rows;
  for (const CrossoverRow& m : measured) {
    std::erase_if(rows, [&](const CrossoverRow& r) {
      return r.machine == m.machine && r.dtype == m.dtype && r.n == m.n && r.k == m.k;
    });
    rows.push_back(m);
  }
  if (const auto folder = std::filesystem::path(file).parent_path(); !folder.empty()) {
    std::error_code ignored;  // what is wrong with it shows when the file is made
    std::filesystem::create_directories(folder, ignored);
  }
  const std::string all = to_text(rows);
  io::OutputFile out(file);
  out.write(std::as_bytes(std::span(all)));
  out.commit();
}

void tune(const Flags& flags) {
  const Device device = device_from(flags.device);
  const std::string file = flags.file.empty() ? plan::crossover_file().string() : flags.file;
  want(flags.dry || !file.empty(), ErrorCode::bad_file, "no file to write: give --file or set ONEPASS_DATAFLOW");
  if (!flags.dry) {  // before anything is measured; a file without a line of ours belongs to another program
    const Crossovers kept = plan::read_crossovers(file);
    want(kept.refusal.empty() || !kept.rows.empty(), ErrorCode::bad_file, kept.refusal);
  }
  const std::shared_ptr<Executor> executor = make_executor(flags.threads);
  std::unique_ptr<bench::DeviceTimer> timer;
  if (device.kind == DeviceKind::cuda) timer = std::make_unique<bench::DeviceTimer>(cuda::device_facts(device.index));
  std::vector<CrossoverRow> measured;
  std::set<std::string> notes;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const Shape& shape : shapes_of(flags)) {
    const auto problem = [&](std::int64_t m) {
      return parse_problem(text("linear m", m, " n", shape.n, " k", shape.k, " ", flags.dtype, " ", flags.device));
    };
    bench::Matrices matrices(problem(flags.most_rows));
    std::vector<Timing> timings;
    for (const std::int64_t m : kRows)
      if (m <= flags.most_rows)
        timings.push_back(time_rows(problem(m), matrices, flags, *executor, timer.get(), notes));
    const Problem p = problem(1);
    measured.push_back({plan::machine_of(p, executor->workers()), p.dtype, p.n, p.k, crossover(timings)});
    flags.json ? results.push_back(as_json(measured.back(), timings)) : print_rows(measured.back(), timings);
    if (!flags.dry) keep(measured, file);
  }
  if (flags.json) return print_json({{"file", flags.dry ? "" : file}, {"shapes", results}, {"notes", notes}});
  for (const std::string& note : notes) fmt::print("{}\n", note);
  if (!flags.dry) fmt::print("written to {}\n", file);
}

}  // namespace

void add_tune(const Command& app) {
  const Command c = app.subcommand(
      "tune", "Measure the numbers of rows from which linear() should use a flat GEMM, and cuBLAS or a BLAS");
  auto flags = std::make_shared<Flags>();
  c.option("--shape", flags->shapes, "Shape [n, k] of w, such as 4096x11008; may be repeated");
  c.option("--model", flags->models, "All shapes of a model: llama2-7b, llama3-8b; may be repeated");
  c.option("--dtype", flags->dtype, "Dtype of x and w; default: bf16").one_of({"bf16", "fp16", "fp32"});
  c.option("--device", flags->device, "cpu (default), cuda or cuda:N");
  c.option("--file", flags->file, "File of the crossovers; default: $ONEPASS_DATAFLOW, or linear.txt in the cache");
  c.option("--threads", flags->threads, "Number of threads on the CPU; default: all cores").range(1, 4096);
  c.option("--rounds", flags->rounds, "Number of rounds, in which the kernels take turns; default: 3").range(1, 100);
  c.option("--seconds", flags->seconds, "Time of each kernel in each round; default: 0.02").range(0.0, 60.0);
  c.option("--rows", flags->most_rows, "Largest number of rows of x; default: 128").range(1, 128);
  c.flag("--dry", flags->dry, "Measure and print, but do not write the file");
  c.flag("--json", flags->json, "Print JSON");
  c.on_run([flags] { tune(*flags); });
}

}  // namespace onepass::cli
