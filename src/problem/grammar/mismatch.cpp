#include "problem/grammar/mismatch.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/shown.hpp"
#include "base/text.hpp"
#include "problem/grammar/text.hpp"
#include "problem/grammar/words.hpp"
#include "problem/operator.hpp"

namespace onepass {
std::string mismatch(const Problem& planned, Problem called) {
  // Permitted differences of a call: more alignment, and other lengths than those of an example.
  for (std::size_t i = 0; i < kRoles; ++i)
    if (called.alignment[i] >= planned.alignment[i]) called.alignment[i] = planned.alignment[i];
  if (planned.varlen == called.varlen) called.lengths_q = planned.lengths_q;
  if (planned.varlen == called.varlen && planned.seqused == called.seqused) called.lengths_k = planned.lengths_k;
  const std::string lines[] = {to_string(planned), to_string(called)};
  std::vector<std::string_view> wanted = words_in(lines[0]), got = words_in(lines[1]);
  const std::string head = "the call must match the plan";
  if (wanted.front() != got.front()) return text(head, ": ", wanted.front(), " (got ", got.front(), ")");
  std::erase_if(wanted, [&](std::string_view word) {
    const auto same = std::ranges::find(got, word);
    return same != got.end() && (got.erase(same), true);
  });
  std::string words;
  const auto add = [&](std::string_view expected, std::string_view found) {
    constexpr std::size_t kShown = 100;
    words += text(words.empty() ? ": " : ", ", shown(expected, kShown), " (got ", shown(found, kShown), ")");
  };
  for (const std::string_view word : wanted) {
    const auto same = std::ranges::find(got, subject_of(word), subject_of);
    add(word, same == got.end() ? "none" : *same);
    if (same != got.end()) got.erase(same);
  }
  for (const std::string_view word : got) add(text("no ", word), word);
  return words.empty() ? text(head, " \"", lines[0], "\"") : head + words;
}

}  // namespace onepass
