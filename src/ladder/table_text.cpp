#include <cstdio>

#include "ladder/table.hpp"

namespace onepass::ladder {
namespace {

template <class... Values>
std::string line(const char* format, Values... values) {
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, format, values...);
  return buffer;
}
std::string bytes_text(Index bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes < 10'000) return line("%lld B", bytes);
  if (bytes < 10'000'000) return line("%.1f kB", b * 1e-3);
  return line("%.1f MB", b * 1e-6);
}

}  // namespace

std::string table_text(const std::vector<Row>& rows) {
  std::string out = line("%-9s %-30s %10s %10s %10s %10s %9s %9s %9s  %s\n", "", "rung", "products", "pointwise", "2^x",
                         "moved", "extra", "fast", "error", "");
  out += line("%-9s %-30s %10s %10s %10s\n", "", "", "MFLOP", "MFLOP", "millions");
  std::string group;
  for (const Row& r : rows) {
    out += line("%-9s %-30s %10.2f %10.2f %10.3f %10s %9s %9s %9.1e  %s\n", r.group == group ? "" : r.group.c_str(),
                r.rung.c_str(), static_cast<double>(r.counts.matmul_flops) * 1e-6,
                static_cast<double>(r.counts.pointwise_flops) * 1e-6, static_cast<double>(r.counts.exponentials) * 1e-6,
                bytes_text(r.counts.bytes()).c_str(), bytes_text(r.extra_bytes).c_str(),
                bytes_text(r.fast_bytes).c_str(), r.error, r.note.c_str());
    group = r.group;
  }
  return out;
}

std::string paper_text(const std::vector<PaperRow>& rows) {
  std::string out = line("%-20s %12s %12s %12s %12s %12s %12s\n", "", "GB moved", "paper", "GFLOP", "of these",
                         "counted as", "paper");
  out += line("%-20s %12s %12s %12s %12s %12s %12s\n", "", "", "", "", "products", "in paper", "");
  for (const PaperRow& r : rows) {
    out +=
        line("%-20s %12.2f %12.1f %12.1f %12.1f %12.1f %12.1f\n", r.name.c_str(),
             static_cast<double>(r.counts.bytes()) * 1e-9, r.paper_gbytes, static_cast<double>(r.counts.flops()) * 1e-9,
             static_cast<double>(r.counts.matmul_flops) * 1e-9, r.gflops_as_in_paper(), r.paper_gflops);
  }
  return out;
}

std::string fp8_text(const Fp8Study& study) {
  std::string out = line("%-40s %10s %10s\n", "root mean square error of O", "here", "in paper");
  for (const Fp8Study::Rmse& r : study.rmse) out += line("%-40s %10.1e %10.1e\n", r.how.c_str(), r.here, r.in_paper);
  out += line("\n%-40s %10s %10s %10s %10s\n", "O too small, V of mean 1, accumulator:", "narrow", "an H100", "emptied",
              "fp32");
  for (const Fp8Study::Loss& l : study.loss) {
    out += line("%6lld keys %29s %8.1f %% %8.0f %% %8.1f %% %8.1f %%\n", l.keys, "", 100 * l.narrow, 100 * l.h100,
                100 * l.emptied, 100 * l.wide);
  }
  return out;
}

}  // namespace onepass::ladder
