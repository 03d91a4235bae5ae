#include "tools/onepass/bench/peaks.hpp"

#include <ctime>

namespace onepass::bench {
namespace {

double clock_seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// 12 chains of 4-cycle latency keep two units busy with a third to spare.
constexpr int kChains = 12;

#define ONEPASS_TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

// All registers start at 0: denormals that an earlier computation left in them would cost 200 times a normal FMA.
void fma_rounds(Isa isa, std::int64_t n) {
#if defined(__x86_64__)
#define ONEPASS_ZMM(i) "vfmadd231ps %%zmm31,%%zmm30,%%zmm" #i "\n"
#define ONEPASS_CLEAR(i) "vpxor %%xmm" #i ",%%xmm" #i ",%%xmm" #i "\n"
#define ONEPASS_YMM(i) "vfmadd231ps %%ymm15,%%ymm14,%%ymm" #i "\n"
  if (isa == Isa::avx512) {
    __asm__ volatile("vpxord %%zmm30,%%zmm30,%%zmm30\nvpxord %%zmm31,%%zmm31,%%zmm31\n" ONEPASS_TWELVE(
                         ONEPASS_CLEAR) "1:\n" ONEPASS_TWELVE(ONEPASS_ZMM) "dec %0\n jnz 1b\n vzeroupper"
                     : "+r"(n)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "cc");
  } else {
    __asm__ volatile(ONEPASS_CLEAR(14) ONEPASS_CLEAR(15)
                         ONEPASS_TWELVE(ONEPASS_CLEAR) "1:\n" ONEPASS_TWELVE(ONEPASS_YMM) "dec %0\n jnz 1b\n vzeroupper"
                     : "+r"(n)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm14", "xmm15", "cc");
  }
#elif defined(__aarch64__)
#define ONEPASS_NEON(i) "fmla v" #i ".4s, v30.4s, v31.4s\n"
  (void)isa;
  __asm__ volatile("1:\n" ONEPASS_TWELVE(ONEPASS_NEON) "subs %0, %0, #1\n b.ne 1b\n"
                   : "+r"(n)::"v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "cc");
#else
  (void)isa;
  (void)n;
#endif
}

}  // namespace

double thread_seconds() { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }
double wall_seconds() { return clock_seconds(CLOCK_MONOTONIC); }

bool isa_of(const std::string& implementation, Isa& isa) {
  const auto ends = [&](const char* s) { return implementation.find(s) != std::string::npos; };
  if (ends(".avx512") || ends(".amx"))
    isa = Isa::avx512;
  else if (ends(".avx2"))
    isa = Isa::avx2;
  else if (ends(".neon"))
    isa = Isa::neon;
  else
    return false;
  return true;
}

double fma_seconds(Isa isa, std::int64_t rounds) {
  const double from = thread_seconds();
  fma_rounds(isa, rounds);
  return thread_seconds() - from;
}

std::int64_t fma_flops_per_round(Isa isa) { return 2 * kChains * (isa == Isa::avx512 ? 16 : isa == Isa::avx2 ? 8 : 4); }

double read_seconds(const float* a, const float* b, std::size_t n) {
  constexpr std::size_t kLine = 16, kAhead = 64 * kLine;
  typedef float Vec __attribute__((vector_size(64)));
  const auto* x = reinterpret_cast<const Vec*>(a);
  const auto* y = reinterpret_cast<const Vec*>(b);
  const double from = thread_seconds();
  Vec sum[8] = {};
  for (std::size_t i = 0; i + 4 <= n / kLine; i += 4) {
    for (std::size_t j = 0; j < 4; ++j) {
      __builtin_prefetch(x + i + j + kAhead / kLine);
      __builtin_prefetch(y + i + j + kAhead / kLine);
      sum[j] += x[i + j];
      sum[4 + j] += y[i + j];
    }
  }
  for (int j = 1; j < 8; ++j) sum[0] += sum[j];
  volatile float sink = sum[0][0];
  (void)sink;
  return thread_seconds() - from;
}

}  // namespace onepass::bench
