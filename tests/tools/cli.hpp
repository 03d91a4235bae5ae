// Runs the command line tool as a user does.
#pragma once
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include <sys/wait.h>

#include "algebra/numerics.hpp"
#include "problem/tensors.hpp"
#include "tools/files.hpp"

namespace onepass::test {

inline std::string quoted(const std::string& s) {
  std::string q = "'";
  for (char c : s) q += c == '\'' ? "'\\''" : std::string(1, c);
  return q + "'";
}

// A problem that the reference works on for seconds. AddressSanitizer makes it a hundred times slower.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr const char* kSecondsOfWork = "h2 s1000 d64";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr const char* kSecondsOfWork = "h2 s1000 d64";
#else
inline constexpr const char* kSecondsOfWork = "h2 s3000 d64";
#endif
#else
inline constexpr const char* kSecondsOfWork = "h2 s3000 d64";
#endif

struct Result {
  int status = 0;
  std::string out, err;
};

// A command of the shell in which $onepass is the tool; its own redirections come before those of the test.
inline Result shell(const std::string& command) {
  const Folder streams;
  const int status = std::system(("onepass=" + quoted(ONEPASS_CLI) + "; { " + command + "; } >" +
                                  quoted(streams("out")) + " 2>" + quoted(streams("err")) + " </dev/null")
                                     .c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), streams.read("out"), streams.read("err")};
}

inline Result onepass(const std::vector<std::string>& arguments) {
  std::string command = "exec \"$onepass\"";
  for (const std::string& a : arguments) command += " " + quoted(a);
  return shell(command);
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
  // Their files, and the words that name them.
  std::vector<std::string> write(const Folder& folder) const {
    folder.write("q.npy", npy(npy_literal("<f4", "2, 4, 5, 8"), bytes_of(q)));
    folder.write("k.npy", npy(npy_literal("<f4", "2, 2, 7, 8"), bytes_of(k)));
    folder.write("v.npy", npy(npy_literal("<f4", "2, 2, 7, 6"), bytes_of(v)));
    return {"--implementation", "reference", "--q", folder("q.npy"), "--k", folder("k.npy"), "--v", folder("v.npy")};
  }
};

}  // namespace onepass::test
