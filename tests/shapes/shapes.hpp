// Reads tests/shapes/*.txt.
#pragma once
#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace onepass::test {

// Appends the lines that `line` with its {a|b} alternatives stands for. The braces of score_mod={..} are its own.
inline void expand(const std::string& line, std::vector<std::string>& into) {
  std::size_t open = line.find('{');
  while (open != std::string::npos && line.substr(0, open).ends_with("_mod="))
    open = line.find('{', line.find('}', open));
  const std::size_t close = line.find('}', open);
  if (open == std::string::npos) {
    into.push_back(line);
    return;
  }
  if (close == std::string::npos) throw std::runtime_error("no } in \"" + line + "\"");
  for (std::size_t from = open + 1, to; from <= close; from = to + 1) {
    to = std::min(line.find('|', from), close);
    expand(line.substr(0, open) + line.substr(from, to - from) + line.substr(close + 1), into);
  }
}

inline std::vector<std::string> shapes(const std::string& file) {
  std::ifstream in(std::string(ONEPASS_SHAPES "/") + file);
  if (!in) throw std::runtime_error("cannot read " + file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line[0] != '#') expand(line, lines);
  }
  return lines;
}

// A suite's name for a parameter that is one of these files.
inline constexpr auto stem = [](const auto& file) {
  const std::string name = file.param;
  return name.substr(0, name.find('.'));
};

}  // namespace onepass::test
