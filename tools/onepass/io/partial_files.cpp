#include "tools/onepass/io/partial_files.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <random>

#include <fcntl.h>
#include <unistd.h>

namespace onepass::io {
namespace {

// A signal's handler may only read memory that is there: names lie in place. A run writes two files at once; a file
// that finds no place is written all the same.
struct Entry {
  std::atomic<bool> taken{false}, armed{false};
  char name[PATH_MAX];
};
static_assert(std::atomic<bool>::is_always_lock_free);
constinit std::array<Entry, 8> table{};

void remember(const std::string& partial) {
  if (partial.size() >= sizeof Entry::name) return;  // open() will refuse it
  for (Entry& e : table) {
    if (e.taken.exchange(true)) continue;
    std::memcpy(e.name, partial.c_str(), partial.size() + 1);
    e.armed.store(true, std::memory_order_release);
    return;
  }
}

std::string random_suffix() {
  std::random_device random;
  char digits[40];
  std::snprintf(digits, sizeof digits, ".partial-%08x%08x", random(), random());
  return digits;
}

// A file's name has at most 255 bytes: a long one is cut.
std::string partial_name(const std::string& target) {
  const std::string suffix = random_suffix();
  const std::size_t slash = target.rfind('/'), name = slash == target.npos ? 0 : slash + 1;
  return target.substr(0, name) + target.substr(name, NAME_MAX - suffix.size()) + suffix;
}

}  // namespace

int open_partial(const std::string& target, std::string& partial) {
  for (int attempt = 0;; ++attempt) {
    partial = partial_name(target);
    remember(partial);  // before it exists, so that no signal can come in between
    const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) return file;
    const int why = errno;
    forget_partial(partial);
    errno = why;
    if (why != EEXIST || attempt == 9) return -1;
  }
}

void forget_partial(const std::string& partial) noexcept {
  for (Entry& e : table) {
    if (!e.armed.load(std::memory_order_acquire) || partial != e.name) continue;
    e.armed.store(false);
    e.taken.store(false);
    return;
  }
}

void remove_partials() noexcept {
  for (const Entry& e : table) {
    if (e.armed.load(std::memory_order_acquire)) ::unlink(e.name);
  }
}

}  // namespace onepass::io
