// A cache from files: the same result from pages as from the keys side by side, in either layout.
#include <gtest/gtest.h>

#include <vector>

#include "tools/cli.hpp"
#include "tools/files.hpp"

namespace onepass::test {
namespace {

TEST(CliCache, PagesAreTheKeysSideBySide) {
  const Folder folder;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::size_t n) {
    std::vector<float> x(n);
    for (float& y : x) y = normal(random);
    return x;
  };
  // One sequence of 5 keys, 2 heads, 4 dims: side by side [1, 5, 2, 4], and in the pages 2 and 0 of 3, of 3 keys each.
  const std::vector<float> q = draw(3 * 2 * 4), k = draw(5 * 2 * 4), v = draw(5 * 2 * 4);
  const auto pages = [](const std::vector<float>& x) {
    std::vector<float> pool(3 * 3 * 8, NAN);
    std::copy_n(x.begin(), 24, pool.begin() + 48);
    std::copy_n(x.begin() + 24, 16, pool.begin());
    return pool;
  };
  const auto write = [&](const char* name, const char* shape, const auto& x, const char* type = "<f4") {
    folder.write(name, npy(npy_literal(type, shape), bytes_of(x)));
  };
  write("q.npy", "1, 3, 2, 4", q);
  write("k.npy", "1, 5, 2, 4", k);
  write("v.npy", "1, 5, 2, 4", v);
  write("kp.npy", "3, 3, 2, 4", pages(k));
  write("vp.npy", "3, 3, 2, 4", pages(v));
  write("used.npy", "1,", std::vector<std::int32_t>{5}, "<i4");
  write("table.npy", "1, 2", std::vector<std::int32_t>{2, 0}, "<i4");
  const std::vector<std::string> both = {"--layout", "bshd", "--mask", "causal_bottom_right", "--q", folder("q.npy")};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), both.begin(), both.end());
    more.insert(more.begin(), "run");
    return onepass(more);
  };
  const Result one = run({"--k", folder("k.npy"), "--v", folder("v.npy"), "--out", folder("one.npy")});
  ASSERT_EQ(one.status, 0) << one.err;
  const Result other = run({"--k", folder("kp.npy"), "--v", folder("vp.npy"), "--seqused-k", folder("used.npy"),
                            "--page-table", folder("table.npy"), "--out", folder("other.npy")});
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_NE(other.out.find("kv=paged:3:3:2 seqused"), other.out.npos) << other.out;
  EXPECT_EQ(folder.read("one.npy"), folder.read("other.npy"));
}

}  // namespace
}  // namespace onepass::test
