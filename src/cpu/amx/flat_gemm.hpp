// cpu.flat_gemm.amx: few rows times a wide matrix on the tile unit, for bf16. Its host half, and the kernels it needs.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "problem/implementation.hpp"

namespace onepass::cpu::amx {

inline constexpr int kGemmRows = 32;    // of x, and of w, whose products make a square of four tiles
inline constexpr int kGemmDepth = 32;   // numbers of a row that a tile takes
inline constexpr int kGemmChunk = 512;  // pairs of kGemmDepth numbers of kGemmRows rows of x: two tiles of 1 KB

// Rows of x to be packed: kGemmDepth numbers of each.
struct GemmPackTask {
  const std::uint16_t* row[kGemmRows];  // at the first of the numbers; null behind the last row
  int numbers;                          // that are there; the rest becomes 0
  std::uint32_t* to;                    // [2][16 pairs][16 rows]
};
// Rows of w against kGemmRows rows of x.
struct GemmTask {
  const std::uint16_t* w;
  std::int64_t stride, k;
  int rows;                // of w, at most kGemmRows
  const std::uint32_t* x;  // packed, kGemmChunk for each kGemmDepth of k
  std::uint16_t* edge;     // [kGemmRows][kGemmDepth] of scratch
  float* sums;             // [kGemmRows of w][kGemmRows of x]
};
struct GemmKernels {
  void (*pack)(const GemmPackTask&);
  void (*multiply)(const GemmTask&);
};

// Refusals for reasons of the problem alone.
std::string refuses_gemm(const Problem& problem);
// The decision for given kernels, whatever the hardware.
Decision plan_gemm(const Request& request, const GemmKernels& kernels);
std::span<const Implementation> flat_gemm_implementations();  // "cpu.flat_gemm.amx"; x86-64 only

}  // namespace onepass::cpu::amx
