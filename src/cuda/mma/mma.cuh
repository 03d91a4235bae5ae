// Matrix products of one warp (sm_80 and later): fragments from shared memory, and mma.sync on them.
#pragma once
#include "cuda/device/arith.cuh"

namespace onepass {

// Four 8 x 8 matrices of 16-bit elements, one register of each a lane; lane l addresses row l % 8 of matrix l / 8.
// Register i of lane l holds elements 2 (l % 4) and + 1 of row l / 4 of matrix i; transposed: of column l / 4.
DEV void ldmatrix4(u32* r, u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
DEV void ldmatrix4_transposed(u32* r, u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

// d[16 x 8] += a[16 x 16] b[16 x 8]. d: rows g and g + 8, columns 2 t and + 1 (lane = 4 g + t). a: the same places of
// its two 8-column halves, rows g, g + 8 of the first and then of the second. b: rows 2 t and + 1 of column g, in two
// halves.
DEV void mma_16816(Bf16, float* d, const u32* a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void mma_16816(F16, float* d, const u32* a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d[16 x 8] += a[16 x 8] b[8 x 8] of tf32 numbers, fp32 whose last 13 bits are not looked at. a: columns t of rows g
// and g + 8, then columns t + 4. b: rows t and t + 4 of column g.
DEV void mma_1688(float* d, const u32* a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d[16 x 8] += the number of common bits of rows of a and columns of b, of 128 bits. Lane 4 g + t has bits 32 t to 32 t
// + 31 of rows g and g + 8, and of column g.
DEV void mma_bits(i32* d, const u32* a, u32 b) {
  asm("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

}  // namespace onepass
