#include "tools/onepass/io/source.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "onepass/error.hpp"

namespace onepass::io {
namespace {
constexpr std::size_t kChunk = std::size_t{16} << 20;
}

void Source::read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > size_ || into.size() > size_ - offset) {
    throw Error(ErrorCode::bad_file, text(name_, " is truncated: it ends at byte ", size_, ", but bytes ", offset,
                                          " to ", offset + into.size(), " are needed"));
  }
  read_inside(offset, into);
}

FileSource::FileSource(const std::string& path, std::function<void(std::size_t)> on_read)
    : Source(path, 0), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), on_read_(std::move(on_read)) {
  if (file_ < 0) throw Error(ErrorCode::bad_file, text("cannot open ", path, ": ", std::strerror(errno)));
  struct stat status{};
  if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file_);
    throw Error(ErrorCode::bad_file, text(path, " is not a regular file"));
  }
  resize(static_cast<std::uint64_t>(status.st_size));
}

FileSource::~FileSource() { ::close(file_); }

void FileSource::read_inside(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t n = ::pread(file_, into.data(), std::min(into.size(), kChunk), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(ErrorCode::bad_file, text("cannot read ", name(), ": ", std::strerror(errno)));
    if (n == 0) throw Error(ErrorCode::bad_file, text(name(), " became shorter while it was read"));
    offset += static_cast<std::uint64_t>(n);
    into = into.subspan(static_cast<std::size_t>(n));
    if (on_read_) on_read_(static_cast<std::size_t>(n));
  }
}

void MemorySource::read_inside(std::uint64_t offset, std::span<std::byte> into) const {
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
}

}  // namespace onepass::io
