#include "base/directories.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.hpp"

namespace onepass {

namespace fs = std::filesystem;

namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

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

std::optional<std::string> read_file(const fs::path& path, std::size_t most, std::string& why) {
  why.clear();
  const auto refuse = [&](const std::string& reason) -> std::optional<std::string> {
    why = text(path.string(), " cannot be read: ", reason);
    return std::nullopt;
  };
  const auto of_system = [] { return std::generic_category().message(errno); };
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  if (file.fd < 0) return errno == ENOENT || errno == ENOTDIR ? std::nullopt : refuse(of_system());
  struct stat s{};
  if (fstat(file.fd, &s) != 0) return refuse(of_system());
  if (!S_ISREG(s.st_mode)) return refuse("it must be a regular file");
  if (static_cast<std::uint64_t>(s.st_size) > most)
    return refuse(text("it must have at most ", most, " bytes (got ", s.st_size, ")"));
  std::string bytes(static_cast<std::size_t>(s.st_size), '\0');
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::read(file.fd, bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return refuse(of_system());
    if (n == 0) bytes.resize(at);  // the file has become shorter
    at += static_cast<std::size_t>(n);
  }
  return bytes;
}

}  // namespace onepass
