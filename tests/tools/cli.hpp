// Runs the command line tool as a user does.
#pragma once
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include <sys/wait.h>

#include "core/numerics.hpp"
#include "tools/files.hpp"

namespace onepass::test {

struct Result {
  int status = 0;
  std::string out, err;
};

inline Result onepass(const std::vector<std::string>& arguments) {
  const auto quoted = [](const std::string& s) {
    std::string q = "'";
    for (char c : s) q += c == '\'' ? "'\\''" : std::string(1, c);
    return q + "'";
  };
  const Folder streams;
  std::string command = quoted(ONEPASS_CLI);
  for (const std::string& a : arguments) command += " " + quoted(a);
  const int status =
      std::system((command + " >" + quoted(streams("out")) + " 2>" + quoted(streams("err")) + " </dev/null").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), streams.read("out"), streams.read("err")};
}

// q [2, 4, 5, 8], k [2, 2, 7, 8], v [2, 2, 7, 6] as fp32.
struct Tensors {
  std::vector<float> q = numbers(2 * 4 * 5 * 8, 1), k = numbers(2 * 2 * 7 * 8, 2), v = numbers(2 * 2 * 7 * 6, 3);

  static std::vector<float> numbers(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<float> all(count);
    for (float& x : all) x = static_cast<float>(random() % 256) / 64.0f - 2.0f;  // exact in bf16 and fp16
    return all;
  }
};

}  // namespace onepass::test
