// A copy of a contiguous tensor, of which some rows cannot be read: a read ends the test.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "onepass/tensor.hpp"

namespace onepass::test {

class PartlyUnreadable {
 public:
  explicit PartlyUnreadable(const ConstTensor& t)
      : row_bytes_(static_cast<std::size_t>(t.shape[t.rank - 1]) * size_of(t.dtype)),
        bytes_(static_cast<std::size_t>(t.elements()) * size_of(t.dtype)),
        at_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        tensor_(t) {
    std::memcpy(at_, t.data, bytes_);
    tensor_.data = at_;
  }
  PartlyUnreadable(const PartlyUnreadable&) = delete;
  PartlyUnreadable& operator=(const PartlyUnreadable&) = delete;
  ~PartlyUnreadable() { munmap(at_, bytes_); }

  // Rows [lo, hi) of the last dimension, as far as they are whole pages of memory. Returns the number of these.
  std::size_t hide(std::int64_t lo, std::int64_t hi) const {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t first = (static_cast<std::size_t>(lo) * row_bytes_ + page - 1) / page,
                      end = static_cast<std::size_t>(hi) * row_bytes_ / page;
    if (first >= end) return 0;
    mprotect(static_cast<std::byte*>(at_) + first * page, (end - first) * page, PROT_NONE);
    return end - first;
  }
  const ConstTensor& tensor() const { return tensor_; }

 private:
  const std::size_t row_bytes_, bytes_;
  void* const at_;
  ConstTensor tensor_;
};

}  // namespace onepass::test
