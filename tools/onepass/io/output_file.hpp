// A file that appears under its name only when all of it is there.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace onepass::io {

// Bytes go to a partial file beside it (partial_files.hpp); commit() renames it, the destructor removes it, and so does
// a signal that ends the tool. A path that is not a regular file (/dev/stdout, a pipe) is written directly.
class OutputFile {
 public:
  // on_write(n) is told of every n bytes that have gone, at most 16 MiB at a time.
  explicit OutputFile(const std::string& path,
                      std::function<void(std::size_t)> on_write = {});  // throws bad_file if it cannot be made
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void finish();  // all is written: whatever the disk has against it is known when this returns
  void commit();  // finishes if that is still to be done

 private:
  [[noreturn]] void fail();
  std::string path_, target_, partial_;  // as given; links followed; empty once it is no more
  int file_ = -1;
  std::function<void(std::size_t)> on_write_;
};

}  // namespace onepass::io
