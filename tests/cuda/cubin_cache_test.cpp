// The disk cache: what is written comes back; anything else in its place is as good as absent.
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "cuda/host/cubin_cache.hpp"

namespace onepass::cuda {
namespace {

namespace fs = std::filesystem;

class CubinCache : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "onepass-cache-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory = pattern;
  }
  void TearDown() override {
    chmod(directory.c_str(), 0700);
    fs::remove_all(directory);
  }
  std::string contents() const {
    std::ifstream file(directory / (key + ".cubin"), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void overwrite(const std::string& bytes) const {
    std::ofstream(directory / (key + ".cubin"), std::ios::binary) << bytes;
  }

  fs::path directory;
  const std::string key = "00112233445566778899aabbccddeeff";
  const Cubin cubin{std::string("machine\0code\n", 13), "registers: 168"};
};

TEST_F(CubinCache, GivesBackWhatWasWritten) {
  ASSERT_TRUE(write_cubin(directory / "made" / "on demand", key, "13.0", cubin));
  const auto back = read_cubin(directory / "made" / "on demand", key, "13.0");
  ASSERT_TRUE(back);
  EXPECT_EQ(back->bytes, cubin.bytes);
  EXPECT_EQ(back->log, cubin.log);
}

TEST_F(CubinCache, KnowsCompilersApart) {
  ASSERT_TRUE(write_cubin(directory, key, "13.0", cubin));
  EXPECT_FALSE(read_cubin(directory, key, "12.8"));
  EXPECT_TRUE(read_cubin(directory, key, ""));  // a machine without a compiler takes what there is
  EXPECT_FALSE(read_cubin(directory, "ffffffffffffffffffffffffffffffff", "13.0"));
}

TEST_F(CubinCache, IgnoresEveryDamagedFile) {
  ASSERT_TRUE(write_cubin(directory, key, "13.0", cubin));
  const std::string good = contents();
  for (std::size_t n = 0; n < good.size(); ++n) {
    overwrite(good.substr(0, n));
    EXPECT_FALSE(read_cubin(directory, key, "13.0")) << "cut to " << n << " bytes";
    std::string flipped = good;
    flipped[n] = static_cast<char>(flipped[n] ^ 1);
    overwrite(flipped);
    EXPECT_FALSE(read_cubin(directory, key, "13.0")) << "byte " << n << " flipped";
  }
  overwrite(good + "x");
  EXPECT_FALSE(read_cubin(directory, key, "13.0"));
  overwrite("onepass cubin 1\n" + key + "\n13.0\n99999999999999999999 1 1\n");
  EXPECT_FALSE(read_cubin(directory, key, "13.0"));
  overwrite(good);
  EXPECT_TRUE(read_cubin(directory, key, "13.0"));
}

TEST_F(CubinCache, LivesWithADirectoryItCannotWrite) {
  if (geteuid() == 0) {  // root may write anywhere but below a file
    std::ofstream(directory / "file") << "x";
    EXPECT_FALSE(write_cubin(directory / "file" / "below", key, "13.0", cubin));
    return;
  }
  chmod(directory.c_str(), 0500);
  EXPECT_FALSE(write_cubin(directory, key, "13.0", cubin));
}

TEST_F(CubinCache, ServesManyWritersAndReaders) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        if (!write_cubin(directory, key, "13.0", cubin)) ++wrong;
        const auto back = read_cubin(directory, key, "13.0");
        if (!back || back->bytes != cubin.bytes) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory), fs::directory_iterator()),
            1);  // no temporary file is left
}

}  // namespace
}  // namespace onepass::cuda
