// A stub for src/cuda/device/shared.cuh.
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

template <class T>
DEV T* shared_at(u32 address, u32 bytes) {  // that many are wanted, and aligned
  if (address % bytes != 0) warps::fail("an address in shared memory is not aligned");
  address = warps::own_address(address);
  if (address + bytes > warps::kSharedBytes) warps::fail("an address lies beyond shared memory");
  return reinterpret_cast<T*>(warps::memory() + address);
}
template <class T>
DEV T shared_word(u32 from) {
  T x;
  std::memcpy(&x, shared_at<void>(from, sizeof x), sizeof x);
  return x;
}

DEV i32 load_word(u32 from) { return shared_word<i32>(from); }
DEV void store_word(u32 to, i32 x) { std::memcpy(shared_at<void>(to, 4), &x, 4); }
DEV const char* load_address(u32 from) { return shared_word<const char*>(from); }
DEV void store_address(u32 to, const char* x) { std::memcpy(shared_at<void>(to, 8), &x, 8); }
DEV float load_one(u32 from) { return shared_word<float>(from); }
DEV void load_pair(float (&x)[2], u32 from) { std::memcpy(x, shared_at<void>(from, 8), 8); }
DEV void store_pair(u32 to, float a, float b) {
  const float x[2] = {a, b};
  std::memcpy(shared_at<void>(to, 8), x, 8);
}
template <class Word>
DEV void load_four(u32 from, Word& a, Word& b, Word& c, Word& d) {
  Word x[4];
  std::memcpy(x, shared_at<void>(from, 16), 16);
  a = x[0], b = x[1], c = x[2], d = x[3];
}
DEV void store_four(u32 to, u32 a, u32 b, u32 c, u32 d) {
  const u32 x[4] = {a, b, c, d};
  std::memcpy(shared_at<void>(to, 16), x, 16);
}
DEV void load_global(float (&x)[4], const float* from) {
  if (reinterpret_cast<u64>(from) % 16 != 0) warps::fail("an address in global memory is not aligned");
  std::memcpy(x, from, 16);
}
DEV void load_global_plain(float (&x)[4], const float* from) { load_global(x, from); }
DEV void prefetch(const void*) {}
DEV void add_global(float* to, float a, float b, float c, float d) {
  if (reinterpret_cast<u64>(to) % 16 != 0) warps::fail("an address in global memory is not aligned");
  to[0] += a, to[1] += b, to[2] += c, to[3] += d;
}
DEV void store_global(void* to, const u32 (&x)[4]) {
  if (reinterpret_cast<u64>(to) % 16 != 0) warps::fail("an address in global memory is not aligned");
  std::memcpy(to, x, 16);
}
DEV void store_global(void* to, const u32 (&x)[2]) {
  if (reinterpret_cast<u64>(to) % 8 != 0) warps::fail("an address in global memory is not aligned");
  std::memcpy(to, x, 8);
}

}  // namespace onepass
