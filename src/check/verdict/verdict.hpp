// The rule of docs/reference/conventions.md: when is a result right?
#pragma once
#include <string>

#include "check/inputs.hpp"

namespace onepass::check {

// One rounding: half the distance between 1 and the next number.
constexpr double rounding_unit(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}

struct Verdict {
  bool accepted = true;  // false: the implementation refuses the problem; `sentence` says why
  bool right = false;
  std::string sentence;                                 // the first violation, or the figures
  double max_error = 0, max_base = 0, max_allowed = 0;  // |out - ref|
  double mean_error = 0, mean_base = 0, mean_allowed = 0;
  double lse_error = 0;  // the largest |lse - ref| as a share of its bound
};

// Judges what stands in the outputs of `inputs`:
//   1. infinities and NaNs exactly where the reference has them
//   2. max|out - ref| <= 2 max|base - ref| + 2 max|(r + 0.3) - 0.3 - r|, r: ref in out's dtype (3 instead of 2:
//   softcap)
//   3. mean|out - ref| <= 1.5 mean|base - ref| + one rounding unit of the output scale
//   4. |lse - ref| <= 1e-5 + 1e-6 |ref|; zeros in empty rows; nothing written outside the rows
//   5. recomputed is 1 where a row's largest score is out of unified_max's range, 0 where it sees no key, else either
//
// Two bounds are widened by what fp32 cannot give, as base's error is a matter of luck where rows are few and rounding
// is relative to a dot product's terms, not to its result. With u = 2^-24 and t = |scale| |q| max|k| (the largest
// terms' size), a score is known to u t, the LSE to (2 + d / 64) u t (added in 4; a tensor core adds 16 products a step
// and truncates the sum, which pulls scores of many elements towards 0: d = 256 and a score of 30 came out 4.4e-5 low;
// beyond d = 256 d / 12, two thirds of what d / 16 truncations of 2 u t could come to: d = 576 came out up to a half
// of it low), and the output to
//     e = 2 u t min(1, 2 (1 - largest weight)) + 4 u max|ref|
// (rows close to one-hot hardly feel their scores; 1/l, the weights and their product round 4 u). max e is added in 2,
// and in 3 the e of all rows as independent errors: sqrt(sum e^2) / rows. At normal scores and d = 64, 2 u t is 4e-6.
// Of an fp8_e4m3 q, u is 2^-13 where it multiplies t, and d / 8 stands for d / 64, as Hopper's products cut every term,
// and 0.5 % of max|ref| and of the output scale are added to the bounds of 2 and 3 for what their sums lose; 2e-5 of
// them more for each key where accumulation is fast. On the CPU, whose sums are fp32, tests compare with the same
// numbers in fp32 besides.
Verdict judge(const Inputs& inputs, const reference::Dense& oracle, const reference::Dense& base);

// Of gradients, each by itself, the worst in the figures:
//   1. not finite exactly where the reference is not (NaN or which infinity is not promised); 0 where nothing reaches
//   2. max|g - ref| <= 3 max|base - ref| + 2 rounding units of max|ref| + u (2 t + 16) max T
//   3. mean|g - ref| <= 2 mean|base - ref| + 1 rounding unit of mean|ref| + u (2 t + 16) mean T
// T: the sum of the sizes of a number's terms, |P| (|dP| + |D|) |k| for dq. P = e^(s - LSE) is known to u t.
//
// Huge scores cannot be judged: exp(s - LSE) of an fp32 LSE is not known (nor is a softmax by the LSE it is given).
Verdict judge(const Inputs& inputs, const reference::DenseGradients& oracle, const reference::DenseGradients& base);

// Of a softmax over rows by 1 to 4, number by number, where a score is known to u |scale x| and e^s so to a share of
// itself; of its backward by 1 to 3 of the gradients with 2 and 1.5 in place of 3 and 2, T = |scale y| (|dy| + sum|dy
// y|), t = max|y| of a logarithm, else 0.
Verdict judge_softmax(const Inputs& inputs, const reference::Dense& oracle, const reference::Dense& base);

// Of a quantize: factors are powers of 2, no number is cut off at 448, and of a head's or tensor's factor no more than
// two binary digits of e4m3's range are lost (of a block's none); each number is within half a step of e4m3 of the
// rotated, centred one, but for 2^-20 of its row's sizes; means are right to 2^-20 of their columns' mean size. What is
// not finite, and all that a rotation mixes with it, is NaN and counts nowhere else.
Verdict judge_quantized(const Inputs& inputs);

// Of a flat GEMM by 1 to 3, T the sum of the sizes of a number's terms, known to (4 + k / 64) u T.
Verdict judge_flat_gemm(const Inputs& inputs, const reference::Dense& oracle, const reference::Dense& base);

// Parts of the rules: both NaN, the same infinity, or both finite; what follows from a verdict's errors and bounds, or
// from a violation that was found before.
bool same_kind(float x, float reference);
Verdict concluded(Verdict verdict, const std::string& worst, std::string violation, const Inputs& inputs);

inline bool can_judge(const Problem& problem, Distribution distribution) {
  return distribution != Distribution::huge || (problem.op != Op::backward && !problem.row_lse);
}

// By the oracle and base of the inputs' own operator.
Verdict judge(Inputs& inputs, Executor& executor);

}  // namespace onepass::check
