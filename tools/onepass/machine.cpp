#include "tools/onepass/machine.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <sstream>

#include <sched.h>
#include <unistd.h>

#include "base/cpu_info.hpp"

namespace onepass::cli {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::int64_t bytes_of(const std::string& text) {  // "48K"
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{}) return 0;
  return end == text.data() + text.size() ? n : *end == 'K' ? n << 10 : *end == 'M' ? n << 20 : n;
}

int count_cpus(const std::string& list) {  // "0-3,8"
  int n = 0;
  std::stringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int from = 0, to = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), from);
    to = from;
    if (end != part.data() + part.size() && *end == '-') std::from_chars(end + 1, part.data() + part.size(), to);
    if (error == std::errc{} && to >= from) n += to - from + 1;
  }
  return std::max(n, 1);
}

}  // namespace

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

std::vector<Feature> features() {
  std::string words = cpu_info("flags");
  const bool x86 = !words.empty();
  if (!x86) words = cpu_info("Features");
  std::set<std::string> flags;
  std::stringstream stream(words);
  for (std::string word; stream >> word;) flags.insert(word);
  const auto has = [&](const char* flag) { return flags.count(flag) != 0; };
  if (x86) {
    return {{"AVX2", has("avx2") && has("fma")},
            {"AVX-512", has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl")},
            {"AVX512-BF16", has("avx512_bf16")},
            {"AVX512-FP16", has("avx512_fp16")},
            {"AMX bf16", has("amx_tile") && has("amx_bf16")},
            {"AMX fp16", has("amx_tile") && has("amx_fp16")}};
  }
  return {{"NEON", has("asimd")},
          {"NEON fp16", has("asimdhp")},
          {"NEON bf16", has("bf16")},
          {"SVE", has("sve")},
          {"SVE2", has("sve2")}};
}

std::vector<Cache> caches() {
  std::vector<Cache> all;
  for (int i = 0;; ++i) {
    const std::string at = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const std::string level = first_line(at + "level");
    if (level.empty()) return all;
    std::string type = first_line(at + "type");
    std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
    all.push_back({static_cast<int>(bytes_of(level)), type, bytes_of(first_line(at + "size")),
                   count_cpus(first_line(at + "shared_cpu_list"))});
  }
}

}  // namespace onepass::cli
