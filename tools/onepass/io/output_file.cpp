#include "onepass/io/output_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "onepass/error.hpp"

namespace onepass::io {
namespace fs = std::filesystem;

void OutputFile::fail() { throw Error(ErrorCode::bad_file, text("cannot write ", path_, ": ", std::strerror(errno))); }

OutputFile::OutputFile(const std::string& path, std::function<void(std::size_t)> on_write)
    : path_(path), target_(path), on_write_(std::move(on_write)) {
  std::error_code none;
  const fs::file_status status = fs::status(path, none);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    if (fs::is_directory(status)) throw Error(ErrorCode::bad_file, text("cannot write ", path, ": it is a directory"));
    file_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    if (fs::exists(status)) target_ = fs::canonical(path).string();
    partial_ = target_ + ".partial-" + std::to_string(::getpid());
    file_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  if (file_ < 0) fail();
}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{16} << 20));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail();
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    if (on_write_) on_write_(static_cast<std::size_t>(n));
  }
}

void OutputFile::commit() {
  const int file = std::exchange(file_, -1);
  if (::close(file) != 0) fail();
  if (partial_.empty()) return;
  if (std::rename(partial_.c_str(), target_.c_str()) != 0) fail();
  partial_.clear();
}

}  // namespace onepass::io
