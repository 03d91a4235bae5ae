// The disk cache: what is written comes back; anything else in its place is as good as absent.
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "cuda/compile/cubin_cache.hpp"

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
  void overwrite(const std::string& bytes) const { std::ofstream(file(), std::ios::binary) << bytes; }
  fs::path file() const { return directory / (key + ".cubin"); }
  unsigned mode() const {
    struct stat s{};
    return stat(file().c_str(), &s) == 0 ? s.st_mode & 07777u : 0;
  }
  // Reads nothing, and says why.
  void expect_refused(const std::string& why) const {
    std::string said;
    EXPECT_FALSE(read_cubin(directory, key, "13.0", &said));
    EXPECT_NE(said.find(why), said.npos) << "\"" << said << "\" does not say: " << why;
    EXPECT_EQ(said.find(directory.string()), 0u) << said;
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
  overwrite("onepass cubin 2\n" + key + "\n13.0\n99999999999999999999 1\n\n");
  EXPECT_FALSE(read_cubin(directory, key, "13.0"));
  overwrite("onepass cubin 2\n" + std::string(5000, 'x'));
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

TEST_F(CubinCache, WhatRootBuildsOthersCanRead) {
  for (const auto& [mask, expected] : {std::pair{022u, 0644u}, {077u, 0600u}, {0u, 0644u}}) {
    const fs::path below = directory / std::to_string(mask);
    const mode_t before = umask(mask);
    const bool written = write_cubin(directory, key, "13.0", cubin) && write_cubin(below, key, "13.0", cubin);
    umask(before);
    ASSERT_TRUE(written);
    EXPECT_EQ(mode(), expected) << std::oct << mask;
    struct stat made{};
    ASSERT_EQ(stat(below.c_str(), &made), 0);
    EXPECT_EQ(made.st_mode & 0777u, 0755u & ~mask) << std::oct << mask;
    EXPECT_TRUE(read_cubin(below, key, "13.0"));
  }
}

TEST_F(CubinCache, WhatIsNotThereIsNoRefusal) {
  std::string why = "left from before";
  EXPECT_FALSE(read_cubin(directory, key, "13.0", &why));
  EXPECT_EQ(why, "");
  EXPECT_FALSE(read_cubin(directory / "nowhere", key, "13.0", &why));
  EXPECT_EQ(why, "");
  ASSERT_TRUE(write_cubin(directory, key, "12.8", cubin));
  EXPECT_FALSE(read_cubin(directory, key, "13.0", &why));
  EXPECT_EQ(why, "");
}

// None of these is waited for or read.
TEST_F(CubinCache, TakesRegularFilesOnly) {
  alarm(60);
  ASSERT_EQ(mkfifo(file().c_str(), 0600), 0);
  expect_refused("it is not a regular file");
  fs::remove(file());
  fs::create_symlink("/dev/zero", file());
  expect_refused("it is a symbolic link");
  fs::remove(file());
  ASSERT_TRUE(write_cubin(directory, "aa", "13.0", cubin));
  fs::create_symlink("aa.cubin", file());
  expect_refused("it is a symbolic link");
  fs::remove(file());
  fs::create_directory(file());
  expect_refused("it is not a regular file");
  alarm(0);
}

TEST_F(CubinCache, TakesNothingThatOthersCouldHaveWritten) {
  ASSERT_TRUE(write_cubin(directory, key, "13.0", cubin));
  for (const auto& [bits, why] :
       {std::pair{0660u, "it is writable by group "}, {0622u, "it is writable by everybody"}}) {
    chmod(file().c_str(), bits);
    expect_refused(why);
  }
  chmod(file().c_str(), 0644);
  EXPECT_TRUE(read_cubin(directory, key, "13.0"));
  if (geteuid() != 0) return;  // only root can give a file away
  ASSERT_EQ(chown(file().c_str(), 4321, 4321), 0);
  expect_refused("it must belong to root or to user 0 (belongs to user 4321)");
  ASSERT_EQ(chown(file().c_str(), 0, 4321), 0);
  EXPECT_TRUE(read_cubin(directory, key, "13.0"));
  ASSERT_EQ(chown(directory.c_str(), 4321, 4321), 0);
  expect_refused("(belongs to user 4321)");
}

TEST_F(CubinCache, ADirectoryThatOthersWriteToIsLeftAlone) {
  ASSERT_TRUE(write_cubin(directory, key, "13.0", cubin));
  for (const auto& [bits, reason] : {std::pair{0775u, "it is writable by group "},
                                     {0777u, "it is writable by everybody"},
                                     {01777u, "it is writable by everybody"}}) {
    chmod(directory.c_str(), bits);
    expect_refused(reason);
    std::string why;
    EXPECT_FALSE(write_cubin(directory, "other", "13.0", cubin, &why));
    EXPECT_NE(why.find(reason), why.npos) << why;
    EXPECT_FALSE(fs::exists(directory / "other.cubin"));
    EXPECT_EQ(look_through(directory).refusal, why);
  }
  chmod(directory.c_str(), 0755);
  EXPECT_TRUE(read_cubin(directory, key, "13.0"));
  // A link to a directory is as good as the directory.
  fs::create_directory_symlink(directory, directory / "link");
  EXPECT_TRUE(read_cubin(directory / "link", key, "13.0"));
}

TEST_F(CubinCache, AFileIsBoundToItsKeyAndHasALimit) {
  ASSERT_TRUE(write_cubin(directory, "another", "13.0", cubin));
  fs::rename(directory / "another.cubin", file());
  expect_refused("it holds a different kernel");
  std::string forged = contents();
  forged.replace(forged.find("another"), 7, key);  // the digest is that of the other key
  overwrite(forged);
  expect_refused("it is damaged: its contents do not match its digest");
  fs::resize_file(file(), kMaxCubinBytes + 1);
  expect_refused("it must be at most 67108864 bytes (got 67108865)");
}

TEST_F(CubinCache, CanBeLookedThrough) {
  EXPECT_EQ(look_through(directory / "nowhere").refusal, "");
  ASSERT_TRUE(write_cubin(directory, key, "13.0", cubin));
  ASSERT_TRUE(write_cubin(directory, "aa", "12.8", cubin));
  ASSERT_EQ(mkfifo((directory / "bb.cubin").c_str(), 0600), 0);
  std::ofstream(directory / "README") << "no kernel";
  const CubinDirectory all = look_through(directory);
  EXPECT_EQ(all.refusal, "");
  EXPECT_EQ(all.kernels, 2);
  ASSERT_EQ(all.refusals.size(), 1u);
  EXPECT_NE(all.refusals[0].find("bb.cubin is not used: it is not a regular file"), std::string::npos);
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
