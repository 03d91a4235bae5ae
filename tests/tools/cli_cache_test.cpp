// A cache from files: the same result from pages as from the keys side by side, in either layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tools/cli.hpp"
#include "tools/files.hpp"
#include "tools/onepass/io/safetensors.hpp"

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
  const Result one =
      run({"--k", folder("k.npy"), "--v", folder("v.npy"), "--batch-invariant", "--out", folder("one.npy")});
  ASSERT_EQ(one.status, 0) << one.err;
  const Result other = run({"--k", folder("kp.npy"), "--v", folder("vp.npy"), "--seqused-k", folder("used.npy"),
                            "--page-table", folder("table.npy"), "--batch-invariant", "--out", folder("other.npy")});
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_NE(other.out.find("kv=paged:3:3:2 seqused batch_invariant"), other.out.npos) << other.out;
  EXPECT_EQ(folder.read("one.npy"), folder.read("other.npy"));
}

// One token of one head, (1, 2, 3, 4), behind one key in the pages 1, 0 of 2 keys each: place 1 of page 1, its first
// two elements, one pair, turned by a quarter.
TEST(CliCache, AppendWritesATokenAndTurnsIt) {
  const Folder folder;
  const auto write = [&](const char* name, const char* shape, const auto& x, const char* type = "<f4") {
    folder.write(name, npy(npy_literal(type, shape), bytes_of(x)));
  };
  const std::vector<float> before(16, 9.0f);
  write("kn.npy", "1, 1, 1, 4", std::vector<float>{1, 2, 3, 4});
  write("vn.npy", "1, 1, 1, 4", std::vector<float>{5, 6, 7, 8});
  write("k.npy", "2, 2, 1, 4", before);
  write("v.npy", "2, 2, 1, 4", before);
  write("used.npy", "1,", std::vector<std::int32_t>{1}, "<i4");
  write("far.npy", "1,", std::vector<std::int32_t>{4}, "<i4");
  write("table.npy", "1, 2", std::vector<std::int32_t>{1, 0}, "<i4");
  write("cos.npy", "2, 1", std::vector<float>{1, 0});
  write("sin.npy", "2, 1", std::vector<float>{0, 1});
  const auto append = [&](const char* used) {
    return onepass({"append",
                    "--k-new",
                    folder("kn.npy"),
                    "--v-new",
                    folder("vn.npy"),
                    "--k",
                    folder("k.npy"),
                    "--v",
                    folder("v.npy"),
                    "--q",
                    folder("kn.npy"),
                    "--cache-seqlens",
                    folder(used),
                    "--page-table",
                    folder("table.npy"),
                    "--cos",
                    folder("cos.npy"),
                    "--sin",
                    folder("sin.npy"),
                    "--layout",
                    "bshd",
                    "--out",
                    folder("o.safetensors")});
  };
  Result r = append("far.npy");
  EXPECT_EQ(r.status, 2);
  EXPECT_NE(r.err.find("to append 1 tokens to a cache of 4 (got 4)"), r.err.npos) << r.err;
  EXPECT_FALSE(std::filesystem::exists(folder("o.safetensors")));
  r = append("used.npy");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out, "appended [1, 1, 1, 4] to [2, 2, 1, 4]\n");
  const io::FileSource file(folder("o.safetensors"));
  const io::Safetensors result(file);
  const auto numbers = [&](const char* name) {
    const io::Array a = result.read(name);
    const auto* x = reinterpret_cast<const float*>(a.data());
    return std::vector<float>(x, x + a.bytes() / sizeof(float));
  };
  const auto with = [&](std::vector<float> row) {
    std::vector<float> all = before;
    std::ranges::copy(row, all.begin() + 12);
    return all;
  };
  EXPECT_EQ(numbers("k"), with({-2, 1, 3, 4}));
  EXPECT_EQ(numbers("v"), with({5, 6, 7, 8}));
  EXPECT_EQ(numbers("q"), (std::vector<float>{-2, 1, 3, 4}));
  EXPECT_EQ(folder.read("k.npy"), npy(npy_literal("<f4", "2, 2, 1, 4"), bytes_of(before)));

  write("token.npy", "1, 1, 4", std::vector<float>{1, 2, 3, 4});
  write("both.npy", "2, 2", std::vector<float>{1, 0, 0, 1});
  write("slot.npy", "1,", std::vector<std::int64_t>{3}, "<i8");
  write("position.npy", "1,", std::vector<std::int32_t>{1}, "<i4");
  r = onepass({"append", "--k-new", folder("token.npy"), "--v-new", folder("token.npy"), "--k", folder("k.npy"), "--v",
               folder("v.npy"), "--slot-mapping", folder("slot.npy"), "--positions", folder("position.npy"),
               "--cos-sin-cache", folder("both.npy"), "--out", folder("s.safetensors")});
  ASSERT_EQ(r.status, 0) << r.err;
  const io::FileSource slot_file(folder("s.safetensors"));
  const io::Array k = io::Safetensors(slot_file).read("k");
  EXPECT_TRUE(std::ranges::equal(std::span(reinterpret_cast<const float*>(k.data()), 16), with({-2, 1, 3, 4})));
}

}  // namespace
}  // namespace onepass::test
