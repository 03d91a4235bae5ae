// The fuzz targets' properties on their seeds, in every build. A failure aborts and names what does not hold.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include <gtest/gtest.h>

#include "fuzz/fuzz.hpp"

namespace onepass::fuzz {
namespace {

int run_all(const char* folder, void (*target)(std::string_view)) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(ONEPASS_CORPUS) / folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    target(std::string(std::istreambuf_iterator<char>(file), {}));
    ++files;
  }
  return files;
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}
// The name of a word of the grammar: all that stands before its first number, colon or '='.
std::string key_of(const std::string& word) { return word.substr(0, word.find_first_of("=:0123456789")); }

// The fuzzer cannot guess words; it finds them in the dictionary.
TEST(FuzzSeeds, EveryWordOfTheGrammarIsInTheDictionary) {
  const std::string dictionary = "\n" + text_of(ONEPASS_DICTIONARY), grammar = text_of(ONEPASS_GRAMMAR);
  std::set<std::string> known;
  const std::regex entry("\n\"([^\"\\\\]+)\""), row("\n\\| (`[^|]+`) \\|"), word("`([^`]+)`");
  for (std::sregex_iterator e(dictionary.begin(), dictionary.end(), entry), end; e != end; ++e)
    known.insert(key_of((*e)[1]));
  int words = 0;
  for (std::sregex_iterator r(grammar.begin(), grammar.end(), row), end; r != end; ++r) {
    const std::string cell = (*r)[1];
    for (std::sregex_iterator w(cell.begin(), cell.end(), word); w != end; ++w, ++words)
      EXPECT_TRUE(known.contains(key_of((*w)[1]))) << (*w)[1] << " of docs/reference/problem.md is not in problem.dict";
  }
  EXPECT_GT(words, 50);
}

TEST(FuzzSeeds, Problem) { EXPECT_GE(run_all("problem", problem), 10); }
TEST(FuzzSeeds, Npy) { EXPECT_GE(run_all("npy", npy), 5); }
TEST(FuzzSeeds, Safetensors) { EXPECT_GE(run_all("safetensors", safetensors), 5); }

}  // namespace
}  // namespace onepass::fuzz
