// cp.async: pieces of 4, 8 or 16 bytes from global to shared memory past the registers. A thread's copies come in
// groups: it waits for all groups but the youngest few.
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

// kCopyBytes bytes, or zeros if they are not real; then `from` is not read.
template <i32 kCopyBytes>
DEV void copy_async(u32 to, const char* from, bool real) {
  if constexpr (kCopyBytes == 16) {
    asm volatile(
        "{ .reg .pred p; setp.eq.u32 p, %2, 0; cp.async.cg.shared.global.L2::128B [%0], [%1], 16, p; }" ::"r"(to),
        "l"(from), "r"(static_cast<u32>(real))
        : "memory");
  } else {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %3, 0; cp.async.ca.shared.global [%0], [%1], %2, p; }" ::"r"(to),
                 "l"(from), "n"(kCopyBytes), "r"(static_cast<u32>(real))
                 : "memory");
  }
}
// The same of 16 bytes if it is wanted; else nothing happens. Without a branch.
DEV void copy_async_if(bool wanted, u32 to, const char* from, bool real) {
  asm volatile(
      "{ .reg .pred p, w; setp.eq.u32 p, %2, 0; setp.ne.u32 w, %3, 0; "
      "@w cp.async.cg.shared.global.L2::128B [%0], [%1], 16, p; }" ::"r"(to),
      "l"(from), "r"(static_cast<u32>(real)), "r"(static_cast<u32>(wanted))
      : "memory");
}
// The first `bytes` of kCopyBytes bytes, then zeros.
template <i32 kCopyBytes>
DEV void copy_async_part(u32 to, const char* from, i32 bytes) {
  if constexpr (kCopyBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kCopyBytes), "r"(bytes)
                 : "memory");
  }
}
DEV void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <i32 kYounger>
DEV void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kYounger) : "memory");
}

}  // namespace onepass
