// Shared by the two directions of the grammar of problems (docs/reference/problem.md).
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace onepass {

using Lengths = std::vector<std::int64_t>;
inline constexpr char kSpreadLetters[] = "bhqk";  // batch, heads, queries, keys
inline std::int64_t sum(const Lengths& v) { return std::accumulate(v.begin(), v.end(), std::int64_t{0}); }

template <class T>
std::string number(T x) {  // the shortest text that reads back as x
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, x).ptr};
}
// Up to the next blank outside braces.
inline std::string_view first_word(std::string_view s) {
  std::size_t end = 0;
  for (int open = 0; end < s.size(); ++end) {
    const char c = s[end];
    if (open == 0 && (c == ' ' || c == '\t' || c == '\r' || c == '\n')) break;
    if (c == '{') ++open;
    if (c == '}' && open > 0) --open;
  }
  return s.substr(0, end);
}

inline std::vector<std::string_view> words_in(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    line.remove_prefix(std::min(line.find_first_not_of(" \t\r\n"), line.size()));
    const std::string_view word = first_word(line);
    if (!word.empty()) words.push_back(word);
    line.remove_prefix(word.size());
  }
  return words;
}

// The pages of a page table's row, to hold a sequence's keys.
inline std::int64_t pages_for(std::int64_t keys, std::int64_t page_size) {
  return keys / page_size + (keys % page_size != 0);
}

}  // namespace onepass
