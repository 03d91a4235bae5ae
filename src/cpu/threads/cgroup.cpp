#include "cpu/threads/cgroup.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

namespace onepass::cpu {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kNone = std::numeric_limits<int>::max();

// `quota` microseconds of CPU time in each `period`, as CPUs.
std::int64_t cpus_of(std::int64_t quota, std::int64_t period) {
  if (quota <= 0 || period <= 0) return kNone;  // v1 says -1 for none
  return std::min(kNone, quota / period + (quota % period != 0));
}

std::int64_t number_in(const fs::path& file) {
  std::int64_t n = 0;
  return std::ifstream(file) >> n ? n : 0;
}

std::int64_t quota_of(const fs::path& group, bool v2) {
  if (!v2) return cpus_of(number_in(group / "cpu.cfs_quota_us"), number_in(group / "cpu.cfs_period_us"));
  std::int64_t quota = 0, period = 0;  // "max 100000" is not a number
  return std::ifstream(group / "cpu.max") >> quota >> period ? cpus_of(quota, period) : kNone;
}

bool has_word(const std::string& list, std::string_view wanted) {  // "rw,cpu,cpuacct"
  std::stringstream words(list);
  for (std::string word; std::getline(words, word, ',');)
    if (word == wanted) return true;
  return false;
}

// The process's group in the hierarchy of v2, or of v1's controller "cpu": lines of "id:controllers:path".
std::string group_path(const fs::path& root, bool v2) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? controllers.empty() && line.starts_with("0:") : has_word(controllers, "cpu"))
      return line.substr(second + 1);
  }
  return {};
}

std::string unescaped(const std::string& path) {  // mountinfo writes a blank as \040
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto octal = [&](std::size_t at) { return path[at] >= '0' && path[at] <= '7' ? path[at] - '0' : 64; };
    const bool escape = path[i] == '\\' && i + 3 < path.size() && octal(i + 1) + octal(i + 2) + octal(i + 3) < 64;
    out += escape ? static_cast<char>(octal(i + 1) * 64 + octal(i + 2) * 8 + octal(i + 3)) : path[i];
    if (escape) i += 3;
  }
  return out;
}

// The part of `path` below the directory `top`; empty if it is not there: a group outside the process's namespace.
std::string below(const std::string& path, const std::string& top) {
  if (top == "/") return path;
  if (!path.starts_with(top) || (path.size() > top.size() && path[top.size()] != '/')) return {};
  return path.substr(top.size());
}

// Over the group and its ancestors up to what is mounted.
std::int64_t least_quota(const fs::path& mount, const std::string& group, bool v2) {
  std::int64_t least = quota_of(mount, v2);
  fs::path at = mount;
  for (const fs::path& part : fs::path(group).relative_path()) {
    if (part == "..") break;
    at /= part;
    least = std::min(least, quota_of(at, v2));
  }
  return least;
}

}  // namespace

int cgroup_cpus(const fs::path& root) {
  std::int64_t least = kNone;
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {  // id parent device top point options... - type source super
    std::istringstream fields(line), behind(line.substr(std::min(line.find(" - "), line.size())));
    std::string skipped, top, point, type, super;
    if (!(fields >> skipped >> skipped >> skipped >> top >> point)) continue;
    if (!(behind >> skipped >> type >> skipped >> super)) continue;
    const bool v2 = type == "cgroup2";
    if (!v2 && (type != "cgroup" || !has_word(super, "cpu"))) continue;
    const fs::path mount = root / fs::path(unescaped(point)).relative_path();
    least = std::min(least, least_quota(mount, below(group_path(root, v2), unescaped(top)), v2));
  }
  return least == kNone ? 0 : static_cast<int>(least);
}

}  // namespace onepass::cpu
