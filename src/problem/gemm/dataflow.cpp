#include "problem/gemm/dataflow.hpp"

#include <charconv>
#include <sstream>

#include "base/text.hpp"

namespace onepass {
namespace {

constexpr std::string_view kHead =
    "# From how many rows of x on linear() takes the flat GEMM and the GEMM of another library, below them the GEMV;\n"
    "# - is never. Written by `onepass tune`.\n"
    "# machine | dtype | n | k | flat GEMM from | GEMM from\n";

std::string_view trimmed(std::string_view s) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t from = s.find_first_not_of(kBlank);
  return from == s.npos ? std::string_view() : s.substr(from, s.find_last_not_of(kBlank) - from + 1);
}

bool read(std::string_view s, std::int64_t& to, bool or_never) {
  if (or_never && s == "-") return to = Crossover::kNever, true;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), to);
  return error == std::errc() && end == s.data() + s.size() && to >= (or_never ? 1 : 0);
}

bool read_row(std::string_view line, CrossoverRow& row) {
  std::string_view items[6];
  std::size_t count = 0;
  for (std::size_t at = 0; at <= line.size(); ++count) {
    const std::size_t end = std::min(line.find('|', at), line.size());
    if (count < 6) items[count] = trimmed(line.substr(at, end - at));
    at = end + 1;
  }
  if (count != 6 || items[0].empty()) return false;
  row.machine = items[0];
  if (items[1] == "bf16")
    row.dtype = DType::bf16;
  else if (items[1] == "fp16")
    row.dtype = DType::f16;
  else if (items[1] == "fp32")
    row.dtype = DType::f32;
  else
    return false;
  return read(items[2], row.n, false) && read(items[3], row.k, false) && read(items[4], row.at.m1, true) &&
         read(items[5], row.at.m2, true);
}

}  // namespace

Crossovers parse_crossovers(std::string_view lines, const std::string& name) {
  Crossovers read;
  std::int64_t first_bad = 0, bad = 0;
  for (std::int64_t number = 1; !lines.empty(); ++number) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = trimmed(lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.empty() || line.front() == '#') continue;
    CrossoverRow row;
    if (read_row(line, row))
      read.rows.push_back(std::move(row));
    else if (bad++ == 0)
      first_bad = number;
  }
  if (bad > 0)
    read.refusal =
        text("line ", first_bad, bad == 1 ? "" : text(" and ", bad - 1, " more"), " of ", name,
             " cannot be read; a line must be \"machine | bf16, fp16 or fp32 | n | k | rows or - | rows or -\"");
  return read;
}

std::string to_text(const std::vector<CrossoverRow>& rows) {
  std::ostringstream out;
  out << kHead;
  const auto from = [](std::int64_t m) { return m == Crossover::kNever ? std::string("-") : std::to_string(m); };
  for (const CrossoverRow& r : rows)
    out << r.machine << " | " << name_of(r.dtype) << " | " << r.n << " | " << r.k << " | " << from(r.at.m1) << " | "
        << from(r.at.m2) << "\n";
  return std::move(out).str();
}

}  // namespace onepass
