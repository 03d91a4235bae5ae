// Softmax over rows and its backward on the CPU: a row is read once where a worker's scratch holds it (kKeptNumbers),
// else cut into pieces that workers share, whose states (m, l) merge, and read twice.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "problem/implementation.hpp"
#include "problem/softmax/softmax_problem.hpp"

namespace onepass::cpu {

inline constexpr std::int64_t kKeptNumbers = 32768;  // 128 KB in fp32, twice that of a backward: within an L2
inline constexpr std::int64_t kRowChunk = 1024;      // worked on at once: 4 KB, within an L1

// The inputs and constants of a call. Elements of x have `first` multiplied to them at once (1 but for scales that are
// not positive), and then the unit that `factor` takes to log2 units and `unit` to natural ones.
struct SoftmaxJob {
  SoftmaxJob(const Problem& problem, const Tensors& t);
  const Problem& p;
  const Tensors& t;
  RowPlace x, mask, row_lse, y, lse, dy, dx;
  float first, factor, unit, scale;
  std::int64_t n, pieces;  // of a row
  bool stream;             // results go past the caches
  std::int64_t begin(std::int64_t piece) const { return piece * kKeptNumbers; }
  std::int64_t count(std::int64_t piece) const { return std::min(kKeptNumbers, n - begin(piece)); }
};

// The state of a piece of a row: its maximum and sum of weights; in a backward the sum of dy y.
struct PieceState {
  float m;
  double l;
};

// scratch: 2 (kKeptNumbers + kRowChunk) floats. reduce leaves there what write_kept takes.
struct SoftmaxKernels {
  std::int64_t target;
  PieceState (*reduce)(const SoftmaxJob&, std::int64_t row, std::int64_t piece, float* scratch);
  void (*write_kept)(const SoftmaxJob&, std::int64_t row, const PieceState&, float* scratch);
  void (*write)(const SoftmaxJob&, std::int64_t row, std::int64_t piece, const PieceState&, float* scratch);
};
inline constexpr std::int64_t kSoftmaxScratch = 2 * (kKeptNumbers + kRowChunk);
const SoftmaxKernels& softmax_kernels(std::int64_t target, bool backward);

// "cpu.softmax.avx512", .. and "cpu.softmax_backward.avx512", .., each with its lesser targets
std::span<const Implementation> softmax_implementations();

}  // namespace onepass::cpu
