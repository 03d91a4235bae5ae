// Files that a process may load code from: they belong to root or to its user, in a directory that no other user may
// write to.
#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace onepass::cuda {

// A directory, opened. Its files are reached through it, so that what was checked is what is used.
class TrustedDirectory {
 public:
  // `why` afterwards: empty if it may be used or is not there, else a sentence.
  TrustedDirectory(const std::filesystem::path& path, std::string& why);
  ~TrustedDirectory();
  TrustedDirectory(const TrustedDirectory&) = delete;
  TrustedDirectory& operator=(const TrustedDirectory&) = delete;
  explicit operator bool() const { return fd_ >= 0; }

  // The bytes of a regular file of at most `most` bytes. Anything else (links, FIFOs, devices, files of other users) is
  // not even waited for. `why` as above.
  std::optional<std::string> read(const std::string& name, std::size_t most, std::string& why) const;
  // Whole or not at all, mode 0644 less the umask. `why`: a sentence if it returns false.
  bool write(const std::string& name, const std::string& bytes, std::string& why) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// mkdir -p, for others to read but never to write, whatever the umask. Failures show when the directory is opened.
void make_directories(const std::filesystem::path& path);

}  // namespace onepass::cuda
