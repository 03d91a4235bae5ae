// --seed, read here: CLI11 makes 2^64 - 1 of any larger number, which draws other numbers than were asked for.
#pragma once
#include <charconv>
#include <cstdint>
#include <string>

#include "tools/onepass/options.hpp"

namespace onepass::cli {

inline Option add_seed(const Command& command, std::uint64_t& seed, const std::string& help) {
  const auto wrong = [](const std::string& word) -> std::string {
    std::uint64_t read = 0;
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, read);
    return error == std::errc{} && at == end ? "" : "must be an integer from 0 to 2^64 - 1 (got '" + word + "')";
  };
  return command.option("--seed", seed, help).check(wrong);
}

}  // namespace onepass::cli
