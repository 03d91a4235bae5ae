// The AVX-512 that the AMX kernels use, as plain loops. emulated_avx512.hpp gives them the instructions' names.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "algebra/numerics.hpp"

namespace onepass::avx512 {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using i32 = std::int32_t;
using u64 = std::uint64_t;

template <int Bytes>
struct Bits {
  alignas(Bytes) u8 at[Bytes];
};
using V512 = Bits<64>;
using V256 = Bits<32>;
using V128 = Bits<16>;

template <class T, int Bytes>
struct Lanes {
  static constexpr int n = Bytes / static_cast<int>(sizeof(T));
  T x[n];
};
template <class T, int Bytes>
Lanes<T, Bytes> lanes(const Bits<Bytes>& v) {
  Lanes<T, Bytes> all;
  std::memcpy(&all, &v, Bytes);
  return all;
}
template <class T, int Bytes>
Bits<Bytes> bits(const Lanes<T, Bytes>& all) {
  Bits<Bytes> v;
  std::memcpy(&v, &all, Bytes);
  return v;
}
// f(i) for each lane of T.
template <class T, int Bytes = 64, class F>
Bits<Bytes> make(F f) {
  Lanes<T, Bytes> all;
  for (int i = 0; i < all.n; ++i) all.x[i] = f(i);
  return bits(all);
}
template <class T, class F>
V512 each(const V512& a, F f) {
  const auto x = lanes<T>(a);
  return make<T>([&](int i) { return f(x.x[i]); });
}
template <class T, class F>
V512 each(const V512& a, const V512& b, F f) {
  const auto x = lanes<T>(a), y = lanes<T>(b);
  return make<T>([&](int i) { return f(x.x[i], y.x[i]); });
}
template <class T, class F>
u32 where(const V512& a, const V512& b, F f) {
  const auto x = lanes<T>(a), y = lanes<T>(b);
  u32 mask = 0;
  for (int i = 0; i < x.n; ++i) mask |= u32{f(x.x[i], y.x[i])} << i;
  return mask;
}
inline bool in(u32 mask, int lane) { return mask >> lane & 1; }

// Memory. Lanes that are not in the mask are not touched.
template <int Bytes>
Bits<Bytes> load(const void* p) {
  Bits<Bytes> v;
  std::memcpy(&v, p, Bytes);
  return v;
}
template <int Bytes>
void store(void* p, const Bits<Bytes>& v) {
  std::memcpy(p, &v, Bytes);
}
template <class T, int Bytes>
Bits<Bytes> load_some(u32 mask, const void* p) {
  return make<T, Bytes>([&](int i) {
    T x = 0;
    if (in(mask, i)) std::memcpy(&x, static_cast<const T*>(p) + i, sizeof x);
    return x;
  });
}
template <class T, int Bytes>
void store_some(void* p, u32 mask, const Bits<Bytes>& v) {
  const auto x = lanes<T>(v);
  for (int i = 0; i < x.n; ++i)
    if (in(mask, i)) std::memcpy(static_cast<T*>(p) + i, &x.x[i], sizeof(T));
}

// Floats.
inline V512 add(const V512& a, const V512& b) {
  return each<float>(a, b, [](float x, float y) { return x + y; });
}
inline V512 sub(const V512& a, const V512& b) {
  return each<float>(a, b, [](float x, float y) { return x - y; });
}
inline V512 mul(const V512& a, const V512& b) {
  return each<float>(a, b, [](float x, float y) { return x * y; });
}
inline V512 div(const V512& a, const V512& b) {
  return each<float>(a, b, [](float x, float y) { return x / y; });
}
inline V512 max(const V512& a, const V512& b) {
  return each<float>(a, b, [](float x, float y) { return x > y ? x : y; });  // of a NaN: y
}
inline V512 abs(const V512& a) {
  return each<u32>(a, [](u32 x) { return x & 0x7fffffffu; });
}
inline V512 mul_add(const V512& a, const V512& b, const V512& c) {
  const auto x = lanes<float>(a), y = lanes<float>(b), z = lanes<float>(c);
  return make<float>([&](int i) { return std::fma(x.x[i], y.x[i], z.x[i]); });
}
inline V512 neg_mul_add(const V512& a, const V512& b, const V512& c) {  // c - a b
  const auto x = lanes<float>(a), y = lanes<float>(b), z = lanes<float>(c);
  return make<float>([&](int i) { return std::fma(-x.x[i], y.x[i], z.x[i]); });
}
// x - floor(x); of an infinity 0.
inline V512 fraction(const V512& a, int) {
  return each<float>(a, [](float x) { return std::isinf(x) ? 0.0f : x - std::floor(x); });
}
inline V512 scale_by_power(const V512& a, const V512& b) {  // a 2^floor(b)
  return each<float>(a, b, [](float x, float y) {
    if (std::isnan(y)) return y;
    return std::ldexp(x, static_cast<int>(std::floor(std::fmax(-1000.0f, std::fmin(y, 1000.0f)))));
  });
}
inline V512 exponent(const V512& a) {
  return each<float>(a, [](float x) { return std::logb(x); });
}
inline V512 mantissa(const V512& a, int, int) {  // in [0.75, 1.5)
  return each<float>(a, [](float x) {
    if (std::isnan(x)) return x;
    if (x == 0 || std::isinf(x)) return std::copysign(1.0f, x);
    int unused;
    const float y = 2 * std::frexp(x, &unused);
    return std::fabs(y) < 1.5f ? y : y / 2;
  });
}
inline u32 compare(const V512& a, const V512& b, int how) {
  return where<float>(a, b, [how](float x, float y) {
    switch (how) {
      case _CMP_EQ_OQ: return x == y;
      case _CMP_LT_OQ: return x < y;
      case _CMP_LE_OQ: return x <= y;
      case _CMP_GT_OQ: return x > y;
      default: return std::isnan(x) || std::isnan(y);  // _CMP_UNORD_Q
    }
  });
}

// Integers.
template <class T>
V512 blend(u32 mask, const V512& no, const V512& yes) {
  const auto n = lanes<T>(no), y = lanes<T>(yes);
  return make<T>([&](int i) { return in(mask, i) ? y.x[i] : n.x[i]; });
}
template <class T>
V512 replace(const V512& no, u32 mask, const V512& yes) {
  return blend<T>(mask, no, yes);
}
template <class T>
V512 keep(u32 mask, const V512& v) {
  return blend<T>(mask, {}, v);
}
template <class To, class From, int Bytes>
V512 widen(const Bits<Bytes>& v) {
  const auto x = lanes<From>(v);
  return make<To>([&](int i) { return static_cast<To>(x.x[i]); });
}
inline V256 narrow(const V512& v) {
  const auto x = lanes<u32>(v);
  return make<u16, 32>([&](int i) { return static_cast<u16>(x.x[i]); });
}
inline V512 from_half(const V256& v) {
  const auto x = lanes<u16>(v);
  return make<float>([&](int i) { return to_float(f16{x.x[i]}); });
}
// The lower or upper half of each 128 bits, lanes of a and b in turn.
template <class T, bool upper>
V512 unpack(const V512& a, const V512& b) {
  const auto x = lanes<T>(a), y = lanes<T>(b);
  constexpr int n = 16 / static_cast<int>(sizeof(T));
  return make<T>([&](int i) {
    const int from = i / n * n + upper * (n / 2) + i % n / 2;
    return i % 2 ? y.x[from] : x.x[from];
  });
}
inline V512 shuffle_quarters(const V512& a, const V512& b, int order) {
  const auto x = lanes<u32>(a), y = lanes<u32>(b);
  return make<u32>([&](int i) {
    const int from = (order >> (2 * (i / 4)) & 3) * 4 + i % 4;
    return i < 8 ? x.x[from] : y.x[from];
  });
}
inline V512 same(const V512& v) { return v; }
inline V512 set_float(float x) {
  return make<float>([x](int) { return x; });
}
template <class T>
V512 set_each(int x) {
  return make<T>([x](int) { return static_cast<T>(x); });
}
inline V512 zero() { return {}; }
inline V512 bits_and(const V512& a, const V512& b) {
  return each<u32>(a, b, [](u32 x, u32 y) { return x & y; });
}
inline V512 bits_or(const V512& a, const V512& b) {
  return each<u32>(a, b, [](u32 x, u32 y) { return x | y; });
}
inline V512 bits_xor(const V512& a, const V512& b) {
  return each<u32>(a, b, [](u32 x, u32 y) { return x ^ y; });
}
inline V512 add_integers(const V512& a, const V512& b) {
  return each<u32>(a, b, [](u32 x, u32 y) { return x + y; });
}
inline V512 sub_integers(const V512& a, const V512& b) {
  return each<u32>(a, b, [](u32 x, u32 y) { return x - y; });
}
inline V512 shift_left(const V512& a, int n) {
  return each<u32>(a, [n](u32 x) { return x << n; });
}
inline V512 shift_right(const V512& a, int n) {
  return each<u32>(a, [n](u32 x) { return x >> n; });
}
inline u32 at_most(const V512& a, const V512& b) {
  return where<i32>(a, b, [](i32 x, i32 y) { return x <= y; });
}
inline u32 above(u32 mask, const V512& a, const V512& b) {
  return mask & where<i32>(a, b, [](i32 x, i32 y) { return x > y; });
}
template <class T>
u32 equal(const V512& a, const V512& b) {
  return where<T>(a, b, [](T x, T y) { return x == y; });
}
inline u32 common(const V512& a, const V512& b) {
  return where<u32>(a, b, [](u32 x, u32 y) { return (x & y) != 0; });
}

}  // namespace onepass::avx512
