// A stub for src/cuda/device/copy_async.cuh.
#pragma once
#include "cuda/device/shared.cuh"

namespace onepass {

template <i32 kCopyBytes>
DEV void copy_async_part(u32 to, const char* from, i32 bytes) {
  if (bytes < 0 || bytes > kCopyBytes) warps::fail("a copy of fewer than no bytes, or of more than its size");
  if (reinterpret_cast<u64>(from) % kCopyBytes != 0) warps::fail("a copy's source is not aligned");
  const auto land = [at = shared_at<char>(to, kCopyBytes), from, bytes] {
    if (bytes > 0) std::memcpy(at, from, static_cast<u32>(bytes));  // `from` may be null where nothing is copied
    std::memset(at + bytes, 0, static_cast<u32>(kCopyBytes - bytes));
  };
  if (warps::copies_are_early)
    land();
  else
    warps::running->begun.push_back(land);
}
template <i32 kCopyBytes>
DEV void copy_async(u32 to, const char* from, bool real) {
  copy_async_part<kCopyBytes>(to, from, real ? kCopyBytes : 0);
}
DEV void copy_async_if(bool wanted, u32 to, const char* from, bool real) {
  if (wanted) copy_async<16>(to, from, real);
}
DEV void copies_commit() {
  warps::running->groups.push_back(std::move(warps::running->begun));
  warps::running->begun.clear();
}
template <i32 kYounger>
DEV void copies_wait() {
  auto& groups = warps::running->groups;
  for (; groups.size() > kYounger; groups.pop_front()) {
    for (const auto& land : groups.front()) land();
  }
}

}  // namespace onepass
