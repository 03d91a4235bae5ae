#include "plan/dataflow.hpp"

#include <algorithm>

#include "base/cpu_info.hpp"
#include "base/directories.hpp"
#include "base/make_once.hpp"
#include "base/text.hpp"
#include "cuda/host/kernels.hpp"

namespace onepass::plan {
namespace {

// Without a measurement. CUDA: the flat GEMM reads w faster than the GEMV from one row on, but does not support fp32
// (docs/notes/flat-gemm.md). On the CPU another library's threads would make the bits depend on their number.
Crossover by_shape(const Problem& p) {
  if (p.device.kind == DeviceKind::cpu) return {1, Crossover::kNever};
  return p.dtype == DType::f32 ? Crossover{5, 5} : Crossover{1, 17};
}

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;  // of the file

const Crossovers& of_file() {
  static constinit MakeOnce<const Crossovers> once;
  return once.get([] { return read_crossovers(crossover_file()); });
}

std::string cpu_column() {
  std::string name = cpu_name();
  std::ranges::replace(name, '|', '/');  // which ends a column
  return name;
}

}  // namespace

std::filesystem::path crossover_file() {
  if (std::filesystem::path p = from_environment("ONEPASS_DATAFLOW"); !p.empty()) return p;
  const std::filesystem::path cache = cache_directory();
  return cache.empty() ? cache : cache / "linear.txt";
}

Crossovers read_crossovers(const std::filesystem::path& file) {
  if (file.empty()) return {};
  std::string why;
  const auto lines = read_file(file, kMaxBytes, why);
  return lines ? parse_crossovers(*lines, file.string()) : Crossovers{{}, why};
}

std::string machine_of(const Problem& p, int workers) {
  if (p.device.kind == DeviceKind::cuda) return cuda::device_facts(p.device.index).name;
  static constinit MakeOnce<const std::string> name;
  return text(name.get(cpu_column), ", ", workers, workers == 1 ? " thread" : " threads");
}

Chosen choose_dataflow(const Problem& p, const std::string& machine, std::span<const CrossoverRow> rows) {
  const auto row = std::ranges::find_if(rows, [&](const CrossoverRow& r) {
    return r.n == p.n && r.k == p.k && r.dtype == p.dtype && r.machine == machine;
  });
  const Crossover at = row != rows.end() ? row->at : by_shape(p);
  return {choose(p.m, at), at, row != rows.end()};
}

Chosen choose_dataflow(const Problem& p, int workers) {
  const std::vector<CrossoverRow>& rows = of_file().rows;
  return rows.empty() ? choose_dataflow(p, {}, rows) : choose_dataflow(p, machine_of(p, workers), rows);
}

std::string why(const Problem& p, int workers, const Chosen& chosen) {
  const auto from = [](std::int64_t m) { return m == Crossover::kNever ? text("never") : text("from m = ", m, " on"); };
  const std::string counts = text("flat GEMM ", from(chosen.at.m1), ", GEMM of another library ", from(chosen.at.m2)),
                    file = crossover_file().string(), &refusal = of_file().refusal;
  const std::string broken = refusal.empty() ? "" : text("\n", refusal, "; `onepass tune` measures again");
  if (chosen.measured)
    return text(name_of(chosen.dataflow), ", as `onepass tune` measured it on ", machine_of(p, workers), ": ", counts,
                broken);
  return text(name_of(chosen.dataflow), ", by the shape, since ",
              file.empty() ? "there is no crossover file (ONEPASS_DATAFLOW)" : file + " has no line for it", ": ",
              counts, broken);
}

}  // namespace onepass::plan
