#include "tools/onepass/bench/cell.hpp"
#include "base/text.hpp"
#include "problem/roles.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <thread>

#include "check/inputs.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/grammar/on.hpp"
#include "tools/onepass/bench/device_inputs.hpp"
#include "tools/onepass/bench/peaks.hpp"
#include "tools/onepass/bench/work.hpp"

namespace onepass::bench {
namespace {

std::string trimmed(const std::string& s) {
  const auto from = s.find_first_not_of(" \t"), to = s.find_last_not_of(" \t");
  return from == s.npos ? std::string() : s.substr(from, to - from + 1);
}

// One thread is timed by its CPU time, which other load on the machine disturbs least; several by the wall clock.
struct Stopwatch {
  bool cpu_time;
  double now() const { return cpu_time ? thread_seconds() : wall_seconds(); }
  void collect(Sample& into, double seconds, const std::function<void()>& f) const {
    const double from = wall_seconds();
    do {
      const double t = now();
      f();
      into.seconds.push_back(now() - t);
    } while (wall_seconds() - from < seconds);
  }
};

// The highest rate of `threads` threads that all compute at once, long enough (12 ms) that starting them does not
// count.
double fma_rate(Isa isa, int threads) {
  constexpr std::int64_t kRounds = 200000, kLonger = 40;
  const double flops = static_cast<double>(kRounds * fma_flops_per_round(isa));
  if (threads == 1) return flops / fma_seconds(isa, kRounds);
  std::vector<std::thread> pool;
  const double from = wall_seconds();
  pool.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) pool.emplace_back([&] { fma_seconds(isa, kLonger * kRounds); });
  for (std::thread& t : pool) t.join();
  return kLonger * flops * threads / (wall_seconds() - from);
}

// The same for reading: K and V of one thread's share as two streams, far beyond the last-level cache.
class ReadProbe {
 public:
  explicit ReadProbe(int threads) : threads_(threads), data_(2 * kFloats * static_cast<std::size_t>(threads), 1.0f) {}
  double rate() const {
    const double bytes = 2.0 * kFloats * sizeof(float);
    if (threads_ == 1) return bytes / read_seconds(data_.data(), data_.data() + kFloats, kFloats);
    std::vector<std::thread> pool;
    const double from = wall_seconds();
    for (int i = 0; i < threads_; ++i) {
      const float* p = data_.data() + 2 * kFloats * static_cast<std::size_t>(i);
      pool.emplace_back([p] { read_seconds(p, p + kFloats, kFloats); });
    }
    for (std::thread& t : pool) t.join();
    return bytes * threads_ / (wall_seconds() - from);
  }

 private:
  static constexpr std::size_t kFloats = std::size_t{8} << 20;  // 32 MiB a stream
  int threads_;
  std::vector<float> data_;
};

// The rate of copying, bytes read and written, by memcpy from and to memory far beyond the last-level cache.
class CopyProbe {
 public:
  explicit CopyProbe(int threads)
      : threads_(threads), from_(kBytes * static_cast<std::size_t>(threads), 1), to_(from_.size(), 2) {}
  double rate() {
    std::vector<std::thread> pool;
    const auto copy = [&](int i) {
      const std::size_t at = kBytes * static_cast<std::size_t>(i);
      std::memcpy(to_.data() + at, from_.data() + at, kBytes);
    };
    const double from = threads_ == 1 ? thread_seconds() : wall_seconds();
    for (int i = 1; i < threads_; ++i) pool.emplace_back(copy, i);
    copy(0);
    for (std::thread& t : pool) t.join();
    return 2.0 * kBytes * threads_ / ((threads_ == 1 ? thread_seconds() : wall_seconds()) - from);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{64} << 20;
  int threads_;
  std::vector<unsigned char> from_, to_;
};

double median(std::vector<double> v) { return Sample{std::move(v)}.median(); }

}  // namespace

void read_problem(CellSpec& cell, const std::string& line, Device device) {
  auto [problem, poisons] = split_poisons(line);
  cell.problem = parse_problem_on(device, problem);
  cell.poisons = std::move(poisons);
  const Tensors tensors = shaped(cell.problem);
  for (const Poison& p : cell.poisons)
    if (!(tensors.*row_of(p.role).input).given())
      throw Error(ErrorCode::bad_text, text("\"", line, "\" has no ", row_of(p.role).name, " to put values into"));
}

std::optional<CellSpec> parse_cell(const std::string& raw, Device device) {
  const std::string line = trimmed(raw);
  if (line.empty() || line[0] == '#') return std::nullopt;
  const auto first = line.find('|'), second = line.find('|', first + 1);
  CellSpec spec;
  // One word stands before a cell's first '|'. A problem has several, and a mask_mod may hold "a || b".
  if (first == line.npos || trimmed(line.substr(0, first)).find(' ') != line.npos) {
    read_problem(spec, line, device);
    return spec;
  }
  if (second == line.npos) {
    throw Error(ErrorCode::bad_text,
                text("a cell must be a problem, or: threads | implementation or - | problem (got \"", line, "\")"));
  }
  spec.threads = std::atoi(line.c_str());
  if (spec.threads < 1)
    throw Error(ErrorCode::bad_text, text("threads must be a positive integer in the cell \"", line, "\""));
  const std::string name = trimmed(line.substr(first + 1, second - first - 1));
  spec.implementation = name == "-" ? "" : name;
  read_problem(spec, trimmed(line.substr(second + 1)), device);
  return spec;
}

CellResult run_cell(const CellSpec& spec, const Effort& effort, PeerProcess* peers) {
  const Problem& p = spec.problem;
  const std::shared_ptr<Executor> pool = spec.threads > 1 ? make_executor(spec.threads) : nullptr;
  Executor& executor = pool ? *pool : serial_executor();
  check::Inputs inputs = check::make_inputs(p, kHostSeed);
  std::optional<check::Inputs> finite;
  if (!spec.poisons.empty()) {
    finite.emplace(check::make_inputs(p, kHostSeed));
    poison(inputs.tensors, spec.poisons);
    inputs.changed();
  }
  const Plan plan = make_plan(inputs.problem, spec.implementation, &executor);
  const auto freed = [](std::byte* w) { ::operator delete(w, std::align_val_t{64}); };
  const std::unique_ptr<std::byte, decltype(freed)> workspace(
      static_cast<std::byte*>(::operator new(plan.workspace_bytes() + 64, std::align_val_t{64})), freed);
  const auto call = [&] { plan.state()->run(inputs.tensors, workspace.get(), executor, nullptr); };
  const auto call_finite = [&] { plan.state()->run(finite->tensors, workspace.get(), executor, nullptr); };

  CellResult result;
  result.spec = spec;
  result.implementation = plan.name();
  const Work work = work_of(p);
  result.flops = work.flops, result.bytes = work.bytes;
  Isa isa;
  const bool has_peak = isa_of(result.implementation, isa);
  std::unique_ptr<ReadProbe> probe;
  std::unique_ptr<CopyProbe> copies;
  if (work.bound == Bound::copies) copies = std::make_unique<CopyProbe>(spec.threads);
  if (work.bound == Bound::reads) probe = std::make_unique<ReadProbe>(spec.threads);

  const Stopwatch watch{spec.threads == 1};
  Sample ours, without_poison;
  std::vector<double> peaks, reads;
  std::vector<std::vector<double>> theirs(effort.peers.size());
  for (const std::string& peer : effort.peers)
    result.peers.push_back({peer, peers ? "" : "no peer process", 0, peers != nullptr, 0});
  call();  // warm-up: pages, caches, clocks
  for (int round = 0; round < effort.rounds; ++round) {
    if (has_peak) peaks.push_back(fma_rate(isa, spec.threads));
    if (probe) reads.push_back(probe->rate());
    if (copies) reads.push_back(copies->rate());
    watch.collect(ours, effort.seconds, call);
    if (finite) watch.collect(without_poison, effort.seconds, call_finite);
    for (std::size_t i = 0; i < effort.peers.size() && peers; ++i) {
      PeerResult& peer = result.peers[i];
      if (!peer.runs) continue;
      const auto answer = peers->ask(text(peer.name, " ", spec.threads, " ", effort.seconds, " ", to_string(p)));
      if (answer.contains("median_s"))
        theirs[i].push_back(answer["median_s"].get<double>());
      else
        peer.runs = false, peer.note = answer.contains("refused") ? "refused: " + answer["refused"].get<std::string>()
                                                                  : answer.value("missing", "no answer");
    }
  }
  result.median_s = ours.median();
  result.best_s = ours.best();
  result.finite_s = without_poison.median();
  result.peak_flops_per_s = median(peaks);
  result.read_bytes_per_s = reads.empty() ? 0 : *std::max_element(reads.begin(), reads.end());
  for (std::size_t i = 0; i < theirs.size(); ++i) result.peers[i].median_s = median(theirs[i]);
  return result;
}

}  // namespace onepass::bench
