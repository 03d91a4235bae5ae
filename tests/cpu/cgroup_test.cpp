// CPU quotas out of made-up /proc and /sys/fs/cgroup trees.
#include "cpu/threads/cgroup.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "onepass/executor.hpp"

namespace onepass::cpu {
namespace {

namespace fs = std::filesystem;

class Cgroup : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "onepass-cgroup-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root = pattern;
  }
  void TearDown() override { fs::remove_all(root); }

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
  // A process in `group` of v2, mounted from its directory `top`.
  void v2(const std::string& group, const std::string& top = "/", const std::string& at = "/sys/fs/cgroup") const {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo", "22 1 0:20 / /proc rw,nosuid - proc proc rw\n30 23 0:26 " + top + " " + at +
                                     " rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n");
  }

  fs::path root;
};

TEST_F(Cgroup, NoneIsNoBound) {
  EXPECT_EQ(cgroup_cpus(root), 0);  // no /proc at all
  v2("/user.slice");
  EXPECT_EQ(cgroup_cpus(root), 0);  // no controller
  write("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpus(root), 0);
  write("sys/fs/cgroup/user.slice/cpu.max", "nonsense");
  EXPECT_EQ(cgroup_cpus(root), 0);
}

TEST_F(Cgroup, Version2IsRoundedUp) {
  v2("/a/b");
  for (const auto& [text, cpus] : {std::pair{"200000 100000\n", 2},
                                   {"150000 100000\n", 2},
                                   {"100000 100000", 1},
                                   {"1000 100000\n", 1},
                                   {"100001 100000\n", 2},
                                   {"9223372036854775807 1\n", 0}}) {
    write("sys/fs/cgroup/a/b/cpu.max", text);
    EXPECT_EQ(cgroup_cpus(root), cpus) << text;
  }
}

TEST_F(Cgroup, AncestorsBoundToo) {
  v2("/a/b/c");
  write("sys/fs/cgroup/a/cpu.max", "300000 100000\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n");
  EXPECT_EQ(cgroup_cpus(root), 3);
}

TEST_F(Cgroup, AContainerSeesItsGroupAsTheMountsTop) {
  v2("/docker/0123", "/docker/0123");  // the host's path, without a namespace of its own
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cgroup_cpus(root), 1);
  v2("/");  // with one
  write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  EXPECT_EQ(cgroup_cpus(root), 3);
  v2("/../../elsewhere");  // moved out of its namespace
  EXPECT_EQ(cgroup_cpus(root), 3);
  v2("/docker/01234", "/docker/0123");  // not below that top
  EXPECT_EQ(cgroup_cpus(root), 3);
}

TEST_F(Cgroup, MountPointsMayHaveBlanks) {
  v2("/a", "/", "/srv/c\\040groups");
  write("srv/c groups/a/cpu.max", "400000 100000\n");
  EXPECT_EQ(cgroup_cpus(root), 4);
}

TEST_F(Cgroup, Version1HasAHierarchyOfItsOwn) {
  write("proc/self/cgroup", "12:pids:/p\n4:cpu,cpuacct:/docker/x\n3:cpuset:/s\n0::/unified\n");
  write("proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
        "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  const std::string cpu = "sys/fs/cgroup/cpu,cpuacct/docker/";
  write(cpu + "x/cpu.cfs_period_us", "100000\n");
  write(cpu + "x/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cgroup_cpus(root), 0);
  write(cpu + "x/cpu.cfs_quota_us", "350000\n");
  EXPECT_EQ(cgroup_cpus(root), 4);
  write(cpu + "cpu.cfs_period_us", "50000\n");
  write(cpu + "cpu.cfs_quota_us", "60000\n");
  EXPECT_EQ(cgroup_cpus(root), 2);
  write("sys/fs/cgroup/unified/unified/cpu.max", "1 100000\n");
  EXPECT_EQ(cgroup_cpus(root), 1);
}

TEST(CgroupOfThisProcess, BoundsTheDefault) {
  const int quota = cgroup_cpus();
  EXPECT_LE(make_executor()->workers(), quota > 0 ? quota : 1 << 20);
  EXPECT_GE(make_executor()->workers(), 1);
  EXPECT_EQ(make_executor(7)->workers(), 7);  // what is asked for is not bounded
}

}  // namespace
}  // namespace onepass::cpu
