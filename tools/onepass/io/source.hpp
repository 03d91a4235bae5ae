// Where a reader's bytes come from: a file, or memory in tests and fuzz targets.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace onepass::io {

class Source {
 public:
  Source(std::string name, std::uint64_t size) : name_(std::move(name)), size_(size) {}
  virtual ~Source() = default;
  const std::string& name() const { return name_; }  // for error sentences
  std::uint64_t size() const { return size_; }
  // Fills `into` from `offset`; throws bad_file if that reaches beyond the end.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

 protected:
  void resize(std::uint64_t size) { size_ = size; }

 private:
  virtual void read_inside(std::uint64_t offset, std::span<std::byte> into) const = 0;
  std::string name_;
  std::uint64_t size_;
};

class FileSource final : public Source {
 public:
  // on_read(n) is told of every n bytes that have come, at most 16 MiB at a time.
  explicit FileSource(
      const std::string& path,
      std::function<void(std::size_t)> on_read = {});  // throws bad_file if it is not a readable regular file
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

 private:
  void read_inside(std::uint64_t offset, std::span<std::byte> into) const override;
  int file_;
  std::function<void(std::size_t)> on_read_;
};

class MemorySource final : public Source {
 public:
  MemorySource(std::string name, std::span<const std::byte> bytes)
      : Source(std::move(name), bytes.size()), bytes_(bytes) {}

 private:
  void read_inside(std::uint64_t offset, std::span<std::byte> into) const override;
  std::span<const std::byte> bytes_;
};

}  // namespace onepass::io
