// The fuzz targets' properties on their seeds, in every build. A failure aborts and names what does not hold.
#include <filesystem>
#include <fstream>
#include <iterator>

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

TEST(FuzzSeeds, Problem) { EXPECT_GE(run_all("problem", problem), 10); }
TEST(FuzzSeeds, Npy) { EXPECT_GE(run_all("npy", npy), 5); }
TEST(FuzzSeeds, Safetensors) { EXPECT_GE(run_all("safetensors", safetensors), 5); }

}  // namespace
}  // namespace onepass::fuzz
