#include "command.hpp"

#include <fmt/format.h>

#include "onepass/error.hpp"

namespace onepass::cli {

Problem problem_from(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return parse_problem(line);
}

void print_json(const nlohmann::ordered_json& value) {
  fmt::print("{}\n", value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace onepass::cli
