#include "base/cpu_info.hpp"

#include <fstream>

namespace onepass {

std::string cpu_info(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == line.npos || line.compare(0, key.size(), key) != 0 ||
        line.find_first_not_of(" \t", key.size()) != colon)
      continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == line.npos ? "" : line.substr(value);
  }
  return "";
}

std::string cpu_name() {
  for (const char* key : {"model name", "Model", "Hardware"}) {
    if (std::string name = cpu_info(key); !name.empty()) return name;
  }
  return "unknown";
}

}  // namespace onepass
