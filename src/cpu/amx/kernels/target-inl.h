// Opens the region of a translation unit that is compiled for AVX-512 and AMX, closed by target_end-inl.h. A pragma
// instead of compiler flags for the whole file: inline functions of the standard library that were parsed before keep
// the baseline instruction set, so the linker cannot pick an AVX-512 copy of them for the rest of the program.
#include <immintrin.h>

#include "algebra/entropy.hpp"
#include "algebra/nonfinite.hpp"
#include "algebra/philox.hpp"
#include "expression/scalar.hpp"

#if defined(ONEPASS_EMULATED_AVX512)  // a test has loops in place of the instructions
#elif defined(__clang__)
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16"))), \
    apply_to = function)
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false positives in avx512fintrin.h (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16")
#endif

#define AMX_INLINE inline __attribute__((always_inline))

// The algebra, the chain of score features, expressions and the dropout mask once more, under this target and with
// internal linkage.
#undef ONEPASS_BEGIN
#undef ONEPASS_END
#define ONEPASS_BEGIN           \
  namespace onepass::cpu::amx { \
  namespace {
#define ONEPASS_END \
  }                 \
  }
#define ONEPASS_PER_TARGET
#include "algebra/nonfinite.hpp"
#include "algebra/philox.hpp"
#include "cpu/common/score_chain.hpp"
#include "expression/eval.hpp"
// They include the algebra, which this one needs.
#include "algebra/entropy.hpp"
#undef ONEPASS_PER_TARGET
