// Denormals cost up to 30 times a normal operation on some cores, and tiny weights times values make them by the
// thousand. Every task runs with flush-to-zero (and denormals-are-zero) set and leaves the caller's mode as it was.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace onepass::cpu {

class FlushToZero {
 public:
  explicit FlushToZero(bool wanted = true) : wanted_(wanted), before_(wanted ? get() : Mode{}) {
    if (wanted_) set(before_ | kFlush);
  }
  ~FlushToZero() {
    if (wanted_) set(before_);
  }
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;

 private:
#if defined(__x86_64__)
  using Mode = unsigned;
  static constexpr Mode kFlush = 0x8040;  // MXCSR: FTZ and DAZ
  static Mode get() { return _mm_getcsr(); }
  static void set(Mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  using Mode = std::uint64_t;
  static constexpr Mode kFlush = Mode{1} << 24;  // FPCR.FZ
  static Mode get() {
    Mode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  using Mode = unsigned;
  static constexpr Mode kFlush = 0;
  static Mode get() { return 0; }
  static void set(Mode) {}
#endif
  bool wanted_;
  Mode before_;
};

}  // namespace onepass::cpu
