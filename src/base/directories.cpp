#include "base/directories.hpp"

#include <cstdlib>

namespace onepass {

namespace fs = std::filesystem;

fs::path from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? fs::path(value) : fs::path();
}

fs::path cache_directory() {
  if (fs::path p = from_environment("ONEPASS_CACHE"); !p.empty()) return p;
  if (fs::path p = from_environment("XDG_CACHE_HOME"); !p.empty()) return p / "onepass";
  if (fs::path p = from_environment("HOME"); !p.empty()) return p / ".cache" / "onepass";
  return {};
}

}  // namespace onepass
