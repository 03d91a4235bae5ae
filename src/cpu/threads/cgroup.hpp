// How much CPU time the process's control groups leave it: containers bound it so, and leave the affinity mask alone.
#pragma once
#include <filesystem>

namespace onepass::cpu {

// The least quota of the process's cgroup and its ancestors, in CPUs, rounded up: v2's cpu.max, v1's cpu.cfs_quota_us
// by cpu.cfs_period_us. 0: none is set, or the system does not say. Reads below `root`, for tests.
int cgroup_cpus(const std::filesystem::path& root = "/");

}  // namespace onepass::cpu
