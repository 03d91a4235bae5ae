// The names that a user's score_mod and mask_mod see on the device: the same functions as on the CPU, and buffers.
// attention/mods.cpp writes the two functions around the user's text.
#pragma once
#include "cuda/attention/fragment.cuh"

#include "cuda/mma/elements.cuh"

namespace onepass::user {

// Mixed arguments become float, as the expressions of the CPU have it; CUDA's own would be ambiguous.
DEV i32 min(i32 a, i32 b) { return ::min(a, b); }
DEV i32 max(i32 a, i32 b) { return ::max(a, b); }
DEV float min(float a, float b) { return fminf(a, b); }
DEV float max(float a, float b) { return fmaxf(a, b); }
DEV float min(float a, i32 b) { return fminf(a, static_cast<float>(b)); }
DEV float max(float a, i32 b) { return fmaxf(a, static_cast<float>(b)); }
DEV float min(i32 a, float b) { return fminf(static_cast<float>(a), b); }
DEV float max(i32 a, float b) { return fmaxf(static_cast<float>(a), b); }
DEV float fmin(float a, float b) { return fminf(a, b); }
DEV float fmax(float a, float b) { return fmaxf(a, b); }
DEV i32 abs(i32 x) { return ::abs(x); }
DEV float abs(float x) { return fabsf(x); }
DEV float fabs(float x) { return fabsf(x); }
DEV float exp(float x) { return expf(x); }
DEV float exp2(float x) { return exp2f(x); }
DEV float log(float x) { return logf(x); }
DEV float log2(float x) { return log2f(x); }
DEV float sqrt(float x) { return sqrtf(x); }
DEV float tanh(float x) { return tanh_of(x); }
DEV float tanhf(float x) { return tanh_of(x); }
DEV float sin(float x) { return sinf(x); }
DEV float cos(float x) { return cosf(x); }
DEV float floor(float x) { return floorf(x); }
DEV float ceil(float x) { return ceilf(x); }
#undef INFINITY
constexpr float INFINITY = -kNegInf;

struct Int32 {
  using Raw = i32;
  static DEV i32 unpack(i32 x) { return x; }
};
struct Bool {
  using Raw = unsigned char;
  static DEV bool unpack(unsigned char x) { return x != 0; }
};

template <class T>
constexpr bool kIsIndex = false;
template <>
constexpr bool kIsIndex<i32> = true;
template <>
constexpr bool kIsIndex<bool> = true;

// buffer[i] or buffer(i, j, ...). An index beyond it reads the nearest element: nothing outside is ever read, also not
// by lanes that stand beyond a sequence's end.
template <class Element, int rank>
struct Buffer {
  const ModBufferView& view;
  template <class... Index>
  DEV auto operator()(Index... index) const
    requires(sizeof...(Index) == rank && (kIsIndex<Index> && ...))
  {
    const i32 at[] = {index...};
    i64 offset = 0;
#pragma unroll
    for (int d = 0; d < rank; ++d) offset += ::max(0, ::min(at[d], view.last[d])) * static_cast<i64>(view.stride[d]);
    return Element::unpack(static_cast<const typename Element::Raw*>(view.data)[offset]);
  }
  template <class Index>
  DEV auto operator[](Index index) const
    requires(rank == 1 && kIsIndex<Index>)
  {
    return (*this)(index);
  }
};

// Where the user gives none. Never called.
#if !defined(ONEPASS_SCORE_MOD)
static_assert(!features.score_mod, "mods_source is missing from the program");
DEV float score_mod(float score, i32, i32, i32, i32, const ModBufferView*) { return score; }
#endif
#if !defined(ONEPASS_MASK_MOD)
static_assert(!features.mask_mod, "mods_source is missing from the program");
DEV bool mask_mod(i32, i32, i32, i32, const ModBufferView*) { return true; }
#endif

}  // namespace onepass::user
