// Scratch memory booked under names. The same code books it and, with no memory behind it, counts how much it needs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace onepass {

class Workspace {
 public:
  static constexpr std::size_t kAlign = 64;  // a cache line, and one AVX-512 vector

  Workspace() = default;  // counting: take() returns nullptr and bytes() grows
  explicit Workspace(void* base) : base_(static_cast<std::byte*>(base)) {}

  template <class T>
  T* take(std::int64_t count) {
    std::byte* p = base_ ? base_ + bytes_ : nullptr;
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return reinterpret_cast<T*>(p);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace onepass
