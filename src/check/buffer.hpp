// Memory that detects writes and reads outside of it.
#pragma once
#include <cstddef>
#include <utility>

namespace onepass::check {

// The place of the bytes in their pages. Every buffer is between two pages that must not be touched.
//   middle      64-byte aligned, poisoned guard bytes on both sides
//   page_end    the last byte is the last of its page: reading one byte further faults
//   page_start  the first byte is the first of its page
enum class Placement { middle, page_end, page_start };

class Buffer {
 public:
  static constexpr unsigned char kPoison = 0xff;  // NaN in fp32, fp16, bf16 and fp8; true as a bool; -1 as an int32
  // Larger buffers are sparse: pages come from the system as they are written, zero and without poison.
  static constexpr std::size_t kSparseBytes = std::size_t{1} << 28;

  Buffer() = default;
  explicit Buffer(std::size_t bytes, Placement placement = Placement::middle);
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  bool sparse() const { return bytes_ > kSparseBytes; }
  void poison();  // data and guards
  bool guards_untouched() const;
  bool all_poison() const;  // data and guards
  void make_read_only();    // a write faults from now on
  Buffer copy() const;      // the same data, in the middle of its pages

 private:
  void swap(Buffer& other) {
    std::swap(map_, other.map_);
    std::swap(map_bytes_, other.map_bytes_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  std::byte* map_ = nullptr;  // page, writable pages, page
  std::size_t map_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace onepass::check
