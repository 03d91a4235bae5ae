#include "cuda/compile/trusted_file.hpp"
#include "base/text.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <system_error>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

namespace fs = std::filesystem;

std::string system_sentence(const fs::path& path, const char* what) {
  return text(path.string(), " cannot be ", what, ": ", std::generic_category().message(errno));
}

// Why what `s` describes cannot be trusted; empty: it can. An access list's grants show in the group's bits.
std::string others_reach(const struct stat& s) {
  if (s.st_uid != 0 && s.st_uid != geteuid())
    return text("it must belong to root or to user ", geteuid(), " (belongs to user ", s.st_uid, ")");
  if (s.st_mode & S_IWOTH) return "it is writable by everybody";
  if (s.st_mode & S_IWGRP) return text("it is writable by group ", s.st_gid);
  return {};
}

std::string refused(const fs::path& path, const std::string& why) { return text(path.string(), " is not used: ", why); }

struct Closed {
  int fd;
  ~Closed() {
    if (fd >= 0) ::close(fd);
  }
};

bool read_all(int fd, char* into, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::read(fd, into, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    into += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

bool write_all(int fd, const char* from, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::write(fd, from, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

TrustedDirectory::TrustedDirectory(const fs::path& path, std::string& why) : path_(path) {
  why.clear();
  fd_ = ::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) {
    if (errno != ENOENT) why = system_sentence(path, "opened");
    return;
  }
  struct stat s{};
  if (fstat(fd_, &s) != 0)
    why = system_sentence(path, "examined");
  else if (const std::string reach = others_reach(s); !reach.empty())
    why = refused(path, reach);
  if (why.empty()) return;
  ::close(fd_);
  fd_ = -1;
}

TrustedDirectory::~TrustedDirectory() {
  if (fd_ >= 0) ::close(fd_);
}

std::optional<std::string> TrustedDirectory::read(const std::string& name, std::size_t most, std::string& why) const {
  why.clear();
  const fs::path path = path_ / name;
  const Closed file{openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  if (file.fd < 0) {
    if (errno == ELOOP)
      why = refused(path, "it is a symbolic link");
    else if (errno != ENOENT)
      why = system_sentence(path, "opened");
    return std::nullopt;
  }
  struct stat s{};
  if (fstat(file.fd, &s) != 0)
    why = system_sentence(path, "examined");
  else if (!S_ISREG(s.st_mode))
    why = refused(path, "it is not a regular file");
  else if (const std::string reach = others_reach(s); !reach.empty())
    why = refused(path, reach);
  else if (static_cast<std::uint64_t>(s.st_size) > most)
    why = refused(path, text("it must be at most ", most, " bytes (got ", s.st_size, ")"));
  if (!why.empty()) return std::nullopt;
  std::string bytes(static_cast<std::size_t>(s.st_size), '\0');
  if (read_all(file.fd, bytes.data(), bytes.size())) return bytes;
  why = refused(path, "it could not be read completely");
  return std::nullopt;
}

bool TrustedDirectory::write(const std::string& name, const std::string& bytes, std::string& why) const {
  why.clear();
  std::string temporary;
  int fd = -1;
  for (int tries = 0; fd < 0 && tries < 100; ++tries) {
    std::uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random) continue;
    char ending[24];
    std::snprintf(ending, sizeof ending, ".%016llx", static_cast<unsigned long long>(random));
    temporary = name + ending;
    fd = openat(fd_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 && errno != EEXIST) break;
  }
  bool ok = fd >= 0 && write_all(fd, bytes.data(), bytes.size());
  int error = errno;
  if (fd >= 0 && ::close(fd) != 0 && ok) ok = false, error = errno;  // a full disk may speak up only here
  if (ok && renameat(fd_, temporary.c_str(), fd_, name.c_str()) != 0) ok = false, error = errno;
  if (ok) return true;
  if (fd >= 0) unlinkat(fd_, temporary.c_str(), 0);
  errno = error;
  why = system_sentence(path_ / name, "written");
  return false;
}

void make_directories(const fs::path& path) {
  fs::path at;
  for (const fs::path& part : path) {
    at /= part;
    ::mkdir(at.c_str(), 0755);
  }
}

}  // namespace onepass::cuda
