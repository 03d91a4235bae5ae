#include "tools/onepass/io/output_file.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "onepass/error.hpp"
#include "tools/onepass/io/partial_files.hpp"

namespace onepass::io {
namespace fs = std::filesystem;

void OutputFile::fail() { throw Error(ErrorCode::bad_file, text("cannot write ", path_, ": ", std::strerror(errno))); }

OutputFile::OutputFile(const std::string& path, std::function<void(std::size_t)> on_write)
    : path_(path), target_(path), on_write_(std::move(on_write)) {
  std::error_code why;
  const fs::file_status status = fs::status(path, why);
  if (!fs::status_known(status)) throw Error(ErrorCode::bad_file, text("cannot write ", path, ": ", why.message()));
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    if (fs::is_directory(status)) throw Error(ErrorCode::bad_file, text("cannot write ", path, ": it is a directory"));
    file_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    if (fs::exists(status)) target_ = fs::canonical(path).string();
    file_ = open_partial(target_, partial_);
    if (file_ < 0) partial_.clear();
  }
  if (file_ < 0) fail();
}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
  if (partial_.empty()) return;
  ::unlink(partial_.c_str());
  forget_partial(partial_);
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

void OutputFile::finish() {
  const int file = std::exchange(file_, -1);
  if (file >= 0 && ::close(file) != 0) fail();
}

void OutputFile::commit() {
  finish();
  if (partial_.empty()) return;
  if (std::rename(partial_.c_str(), target_.c_str()) != 0) fail();
  forget_partial(partial_);
  partial_.clear();
}

}  // namespace onepass::io
