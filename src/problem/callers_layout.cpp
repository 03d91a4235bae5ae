#include "problem/callers_layout.hpp"

#include <algorithm>

namespace onepass {
namespace {

thread_local bool first = false, pages = false;

constexpr std::string_view kTokens[] = {"q",  "k",  "v",    "out",   "dout",  "dq",    "dk",
                                        "dv", "x",  "y",    "k_new", "v_new", "q_out", "tq",
                                        "tk", "tv", "tout", "tdout", "tdq",   "tdk",   "tdv"};
constexpr std::string_view kRows[] = {"lse",     "dlse",     "recomputed", "row_max",
                                      "entropy", "dentropy", "tlse",       "tdlse"};  // [batch, heads, seq]

}  // namespace

CallersLayout::CallersLayout(bool tokens_first, bool paged) : before_first_(first), before_paged_(pages) {
  first = tokens_first;
  pages = paged;
}

CallersLayout::~CallersLayout() {
  first = before_first_;
  pages = before_paged_;
}

bool is_turned(std::string_view name, int rank) {
  if (!first) return false;
  if (rank == 3) return std::ranges::find(kRows, name) != std::end(kRows);
  return rank == 4 && std::ranges::find(kTokens, name) != std::end(kTokens) && !(pages && (name == "k" || name == "v"));
}

}  // namespace onepass
