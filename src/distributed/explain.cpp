// The plan as a text.
#include <algorithm>
#include <iomanip>
#include <numeric>
#include <sstream>

#include "base/text.hpp"
#include "distributed/layout.hpp"
#include "problem/operator.hpp"
#include "problem/problem.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

using Index = std::int64_t;
constexpr Index kShownRanks = 16, kShownRuns = 4;

std::string bytes_text(Index n) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto x = static_cast<double>(n);
  std::size_t unit = 0;
  for (; x >= 1000 && unit < 5; ++unit) x /= 1000;
  std::ostringstream out;
  out << std::fixed << std::setprecision(unit > 0 && x < 100 ? 1 : 0) << x << ' ' << kUnits[unit];
  return out.str();
}

std::string runs_text(const std::vector<Piece>& runs) {
  if (runs.empty()) return "nothing";
  std::string out;
  for (std::size_t i = 0; i < runs.size() && i < kShownRuns; ++i) {
    out += text(i > 0 ? " " : "", runs[i].positions.begin, "..", runs[i].positions.end - 1);
  }
  return runs.size() > kShownRuns ? out + text(" and ", runs.size() - kShownRuns, " more") : out;
}

std::string percent(double x) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << 100 * x << " %";
  return out.str();
}

std::string milliseconds(double s) {
  std::ostringstream out;
  out << std::setprecision(3) << 1e3 * s << " ms";
  return out.str();
}

// The smallest and the largest number of bytes of the links that are used, and how many these are.
std::string links_text(const std::vector<std::vector<Index>>& bytes) {
  std::vector<Index> used;
  for (const auto& row : bytes)
    std::copy_if(row.begin(), row.end(), std::back_inserter(used), [](Index n) { return n > 0; });
  if (used.empty()) return "nothing is sent";
  const auto [low, high] = std::minmax_element(used.begin(), used.end());
  const std::string range = *low == *high ? bytes_text(*high) : bytes_text(*low) + " to " + bytes_text(*high);
  return text(range, " on each of ", used.size(), used.size() == 1 ? " link, " : " links, ",
              bytes_text(std::accumulate(used.begin(), used.end(), Index{0})), " in all");
}

Visibility visibility_of(const Problem& problem) {
  const Band& band = problem.band;
  const bool banded = band.causal || band.left >= 0 || band.right >= 0 || problem.alibi;
  want(is_attention(problem.op), ErrorCode::bad_value, "context parallelism needs a problem of attention");
  want(!problem.seqused && !problem.paged() && !problem.varlen && problem.seq_q == problem.seq_k, ErrorCode::bad_value,
       "context parallelism needs as many queries as keys, without a cache or cu_seqlens");
  want(!banded || band.align != Align::offset || band.offset == 0, ErrorCode::bad_value,
       "context parallelism aligns query i with key i (got an offset of ", band.offset, ")");
  return {band.left, band.causal ? 0 : band.right, {}};
}

Shape shape_of(const Problem& problem) {
  return {problem.batch,  problem.heads_q, problem.heads_kv,
          problem.dim_qk, problem.dim_v,   static_cast<Index>(size_of(problem.dtype))};
}

}  // namespace

Visibility visibility_of(std::string_view line) { return visibility_of(parse_problem(line)); }
Shape shape_of(std::string_view line) { return shape_of(parse_problem(line)); }

Layout layout_from_name(std::string_view name, Index length, Index ranks, const Visibility& visibility) {
  if (name == "contiguous") return Layout::contiguous(length, ranks);
  if (name == "zigzag") return Layout::zigzag(length, ranks);
  want(name == "documents", ErrorCode::bad_value, "layout must be contiguous, zigzag or documents (got ", name, ")");
  return Layout::documents(visibility.documents.empty() ? std::vector<Index>{0, length} : visibility.documents, ranks);
}

std::string explain(std::string_view line, const Layout& layout, const Machine& machine) {
  const Problem problem = parse_problem(line);
  const Visibility visibility = visibility_of(problem);
  want(layout.length() == problem.seq_k, ErrorCode::bad_value, "layout must be for ", problem.seq_k, " positions (got ",
       layout.length(), ")");
  const Shape shape = shape_of(problem);
  const std::vector<Index> pairs = work(layout, visibility);
  const auto all = static_cast<double>(std::accumulate(pairs.begin(), pairs.end(), Index{0}));
  std::ostringstream out;
  out << to_string(problem) << "\non " << layout.ranks() << " ranks\n\n";
  for (Index r = 0; r < std::min(layout.ranks(), kShownRanks); ++r) {
    const double share = all > 0 ? static_cast<double>(pairs[static_cast<std::size_t>(r)]) / all : 0;
    out << "rank " << r << ": " << layout.count(r) << " positions (" << runs_text(layout.runs(r)) << "), "
        << percent(share) << " of the visible pairs\n";
  }
  if (layout.ranks() > kShownRanks) out << "and " << layout.ranks() - kShownRanks << " more ranks\n";
  out << "\nby the model at " << machine.forward_flops / 1e12 << " TFLOP/s and " << machine.bytes_per_second / 1e9
      << " GB/s a rank, the fastest first:\n";
  for (const Estimate& e : estimates(layout, visibility, shape, machine)) {
    out << name_of(e.scheme) << ": forward " << milliseconds(e.forward) << ", backward " << milliseconds(e.backward)
        << ", " << percent(e.total() > 0 ? e.ideal / e.total() : 1) << " of linear; K, V and gradients "
        << bytes_text(e.memory) << " on a rank\n";
    for (const bool backward : {false, true}) {
      out << "  " << (backward ? "backward: " : "forward: ")
          << links_text(traffic(e.scheme, layout, visibility, shape, backward)) << "\n";
    }
  }
  return out.str();
}

}  // namespace onepass::inline v0::context_parallel
