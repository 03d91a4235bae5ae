// Rows of numbers between memory and a worker's scratch. Included once per target.
#if defined(ONEPASS_CPU_SOFTMAX_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_SOFTMAX_ROWS_INL_H
#undef ONEPASS_CPU_SOFTMAX_ROWS_INL_H
#else
#define ONEPASS_CPU_SOFTMAX_ROWS_INL_H
#endif

#include "algebra/ceil_div.hpp"
#include "cpu/common/simd-inl.h"
#include "cpu/softmax/softmax.hpp"

#include <hwy/cache_control.h>

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

inline const float kHidden = onepass::Arith<float>::neg_inf();
inline std::int64_t whole_vectors(std::int64_t n) { return round_up(n, kLanes); }

// f with a number of the dtype, which is one of the three that rows have.
template <class F>
void with_row_type(DType dtype, F f) {
  switch (dtype) {
    case DType::f16: return f(f16{});
    case DType::bf16: return f(bf16{});
    default: return f(float{});
  }
}

// s[0, count) = numbers of a row, as fp32; behind them `pad` up to whole vectors. Returns lane by lane their largest.
// Memory kAhead bytes further is fetched meanwhile: the next chunk, or the next row. Otherwise its reading would not
// begin before the weights of this one are computed.
template <class T>
VF take(const void* data, std::int64_t at, std::int64_t stride, std::int64_t count, float pad, float* s) {
  constexpr std::int64_t kAhead = 4096;
  const T* const from = static_cast<const T*>(data) + at;
  VF most = splat(pad);
  std::int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= count; i += kLanes) {
      hwy::Prefetch(reinterpret_cast<const char*>(from + i) + kAhead);
      const VF x = load(DF(), from + i);
      hn::StoreU(x, DF(), s + i);
      most = Arith<VF>::max(most, x);
    }
  }
  const std::int64_t whole = i;
  for (; i < count; ++i) s[i] = to_float(from[i * stride]);
  for (; i < whole_vectors(count); ++i) s[i] = pad;
  for (i = whole; i < count; i += kLanes) most = Arith<VF>::max(most, hn::LoadU(DF(), s + i));
  return most;
}
inline VF take(const void* data, DType dtype, std::int64_t at, std::int64_t stride, std::int64_t count, float pad,
               float* s) {
  VF most = splat(pad);
  with_row_type(dtype, [&](auto zero) { most = take<decltype(zero)>(data, at, stride, count, pad, s); });
  return most;
}

// s[i] = -inf where the mask hides it.
inline void hide(const std::uint8_t* mask, std::int64_t stride, std::int64_t count, float* s) {
  std::int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= count; i += kLanes) {
      const VF seen = load(DF(), reinterpret_cast<const bool*>(mask + i));
      hn::StoreU(Arith<VF>::if_zero(seen, Arith<VF>::neg_inf(), hn::LoadU(DF(), s + i)), DF(), s + i);
    }
  }
  for (; i < count; ++i)
    if (!mask[i * stride]) s[i] = kHidden;
}

// factor * s[0, count) as whole vectors of results.
template <class T>
void put_vectors(T* to, std::int64_t count, float factor, const float* s) {
  const VF by = splat(factor);
  for (std::int64_t i = 0; i < count; i += kLanes) store(hn::LoadU(DF(), s + i) * by, DF(), to + i);
}
// The same past the caches, `to` being aligned to a vector's bytes: 16-bit results first become whole vectors.
inline void stream_vectors(float* to, std::int64_t count, float factor, const float* s) {
  const VF by = splat(factor);
  for (std::int64_t i = 0; i < count; i += kLanes) hn::Stream(hn::LoadU(DF(), s + i) * by, DF(), to + i);
}
template <class T>
void stream_vectors(T* to, std::int64_t count, float factor, const float* s) {
  using D16 = hn::ScalableTag<std::uint16_t>;
  constexpr std::int64_t kHere = 512, kWords = 2 * kLanes;
  HWY_ALIGN std::uint16_t here[kHere];
  for (std::int64_t i = 0; i < count; i += kHere) {
    const std::int64_t n = std::min(kHere, count - i);
    put_vectors(reinterpret_cast<T*>(here), n, factor, s + i);
    auto* const from = reinterpret_cast<std::uint16_t*>(to + i);
    for (std::int64_t j = 0; j < n; j += kWords) hn::Stream(hn::Load(D16(), here + j), D16(), from + j);
  }
}

// factor * s[0, count) to a row of results.
template <class T>
void put(void* data, std::int64_t at, std::int64_t stride, std::int64_t count, bool stream, float factor,
         const float* s) {
  T* const to = static_cast<T*>(data) + at;
  constexpr std::int64_t kBytes = 4 * kLanes, kStep = kBytes / static_cast<std::int64_t>(sizeof(T));
  std::int64_t i = 0;
  if (stride == 1 && stream && reinterpret_cast<std::uintptr_t>(to) % kBytes == 0)
    stream_vectors(to, i = count / kStep * kStep, factor, s);
  else if (stride == 1)
    put_vectors(to, i = count / kLanes * kLanes, factor, s);
  for (; i < count; ++i) to[i * stride] = from_float<T>(factor * s[i]);
}
inline void put(void* data, DType dtype, std::int64_t at, std::int64_t stride, std::int64_t count, bool stream,
                float factor, const float* s) {
  with_row_type(dtype, [&](auto zero) { put<decltype(zero)>(data, at, stride, count, stream, factor, s); });
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
