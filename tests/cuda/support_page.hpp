// A generated part of docs/reference/support.md, between its name in a comment and an end.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace onepass::cuda {

// Compares the part with `wanted`. With ONEPASS_WRITE_SUPPORT=1 it writes the part instead.
inline void expect_on_support_page(const std::string& name, const std::string& wanted) {
  const std::string path = ONEPASS_SUPPORT_PAGE;
  std::ifstream file(path);
  std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string begin = "<!-- " + name + " -->\n";
  const std::size_t from = page.find(begin) + begin.size(), to = page.find("<!-- end -->", from);
  ASSERT_TRUE(page.find(begin) != page.npos && to != page.npos) << path << " has no part " << name;
  if (std::getenv("ONEPASS_WRITE_SUPPORT")) {
    std::ofstream(path) << page.replace(from, to - from, wanted);
    return;
  }
  EXPECT_EQ(page.substr(from, to - from), wanted)
      << "if this is right, run\n  ONEPASS_WRITE_SUPPORT=1 build/release/tests/cuda/test_cuda_plan "
         "--gtest_filter='Support*'";
}

}  // namespace onepass::cuda
