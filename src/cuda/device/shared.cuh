// Words of shared memory, by their 32-bit addresses, and the way of four of them to and from global memory.
#pragma once
#include "cuda/device/types.cuh"

namespace onepass {

DEV i32 load_word(u32 from) {
  i32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
DEV void store_word(u32 to, i32 x) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }
DEV const char* load_address(u32 from) {
  u64 x;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(x) : "r"(from) : "memory");
  return reinterpret_cast<const char*>(x);
}
DEV void store_address(u32 to, const char* x) { asm volatile("st.shared.b64 [%0], %1;" ::"r"(to), "l"(x) : "memory"); }
DEV float load_one(u32 from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}
DEV void load_pair(float (&x)[2], u32 from) {  // 8 bytes aligned, as the next
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(from) : "memory");
}
DEV void store_pair(u32 to, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
}
template <class Word>
DEV void load_four(u32 from, Word& a, Word& b, Word& c, Word& d) {  // 16 bytes aligned, as the next
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
}
DEV void store_four(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
DEV void load_global(float (&x)[4], const float* from) {  // once: it does not stay in the caches
  asm volatile("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "l"(from)
               : "memory");
}
DEV void load_global_plain(float (&x)[4], const float* from) {  // as the caches see fit
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "l"(from)
               : "memory");
}
// A line of 128 bytes is on its way to L2.
DEV void prefetch(const void* at) { asm volatile("prefetch.L2 [%0];" ::"l"(at)); }
DEV void add_global(float* to, float a, float b, float c, float d) {  // 16 bytes aligned; sm_90
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}
DEV void store_global(void* to, const u32 (&x)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
DEV void store_global(void* to, const u32 (&x)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(x[0]), "r"(x[1]) : "memory");
}

}  // namespace onepass
