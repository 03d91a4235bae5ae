// Which kernel computes a linear layer of m rows: measured once on a machine, kept in a file that can be read.
// The heuristic dataflow of Hong et al., FlashDecoding++, arXiv:2311.01282, section 5.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "onepass/tensor.hpp"

namespace onepass {

// gemm: that of another library. none: a kernel that is taken only where no other accepts the problem.
enum class Dataflow : std::uint8_t { gemv, flat_gemm, gemm, none };
inline constexpr std::string_view name_of(Dataflow d) {
  return d == Dataflow::gemv        ? "GEMV"
         : d == Dataflow::flat_gemm ? "flat GEMM"
         : d == Dataflow::gemm      ? "GEMM"
                                    : "no dataflow";
}

// For one weight matrix [n, k] on one machine: flat GEMM from m1 rows on, GEMM from m2 on.
struct Crossover {
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::int64_t m1 = kNever, m2 = kNever;
  friend bool operator==(const Crossover&, const Crossover&) = default;
};
inline Dataflow choose(std::int64_t m, const Crossover& at) {
  if (m >= at.m2) return Dataflow::gemm;
  return m >= at.m1 ? Dataflow::flat_gemm : Dataflow::gemv;
}

// Seconds measured at rising m; infinite where a kernel does not accept this number of rows. m1 is the first m at which
// flat GEMM beats GEMV, m2 the first from m1 on at which GEMM beats flat GEMM.
struct Timing {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  std::int64_t m = 0;
  double gemv = 0, flat_gemm = 0, gemm = 0;
};
inline Crossover crossover(const std::vector<Timing>& timings) {
  Crossover at;
  for (const Timing& t : timings) {
    if (t.flat_gemm < t.gemv) at.m1 = std::min(at.m1, t.m);
    if (t.m >= at.m1 && t.gemm < t.flat_gemm) at.m2 = std::min(at.m2, t.m);
  }
  return at;
}

// A line of the file: "NVIDIA H200 | bf16 | 4096 | 11008 | 2 | 48", `machine` as machine_of() (plan/dataflow.hpp) has
// it, "-" for never. Lines that begin with # and empty ones say nothing.
struct CrossoverRow {
  std::string machine;
  DType dtype = DType::bf16;
  std::int64_t n = 0, k = 0;
  Crossover at;
  friend bool operator==(const CrossoverRow&, const CrossoverRow&) = default;
};
struct Crossovers {
  std::vector<CrossoverRow> rows;
  std::string refusal;  // one sentence: which line, or why the file, is not used; empty: all of it is used
};
// Lines that cannot be read are left out. `name`: of the file, for the sentence.
Crossovers parse_crossovers(std::string_view lines, const std::string& name);
std::string to_text(const std::vector<CrossoverRow>& rows);  // parse_crossovers(to_text(rows), "").rows == rows

}  // namespace onepass
