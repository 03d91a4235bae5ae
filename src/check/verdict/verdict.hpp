// The rule of docs/reference/conventions.md by which a result is right.
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
  bool compared = true;                                 // false: no number is finite, so nothing is compared
  std::string sentence;                                 // the first violation, or the figures
  double max_error = 0, max_base = 0, max_allowed = 0;  // |out - ref|
  double mean_error = 0, mean_base = 0, mean_allowed = 0;
  double lse_error = 0;  // the largest |lse - ref| as a share of its bound
};

// Judges the outputs of `inputs`:
//   1. infinities and NaNs exactly where the reference has them
//   2. max|out - ref| <= 2 max|base - ref| + 2 max|(r + 0.3) - 0.3 - r| + max e, r: ref in out's dtype (3 instead of 2:
//      softcap), or <= max B
//   3. mean|out - ref| <= 1.5 mean|base - ref| + one rounding unit of the output scale + sqrt(sum e^2) / rows, or <= L
//   4. |lse - ref| <= 1e-5 + 1e-6 |ref| + (2 + d / 64) u t; zeros in empty rows; nothing written outside the rows
//      |row_max - ref| <= (2 + d / 64) u t + 8 u (t + |ref|), with softcap or score_mod 1e-5 + 1e-6 |ref| more
//      |entropy - ref| <= min(ln(n + 1), e^E E (D + E)) + (1e-6 + sum error of n keys) (1 + ref + D), at least 0. E is
//      the bound of row_max, and D the standard deviation of ln P: a score's error e moves H by -P (ln P + H) e
//   5. recomputed is 1 where a row's largest score is out of unified_max's range, 0 where it sees no key, else either
//
// With u = 2^-24 and t = |scale| |q| max|k| (the largest terms' size), a score is known to u t, and a row to
//     e = 2 u t min(1, 2 (1 - largest weight)) + 4 u max|ref|
// (rows close to one-hot hardly depend on their scores; 1/l, the weights and their product round 4 u). At normal scores
// and d = 64, 2 u t is 4e-6. The errors e of rows are independent of each other.
//
// B is the largest error that a right result can have in one element, and L is the largest mean of such errors
// (tally.hpp). They decide where elements are few, since base's error is then a matter of chance.
// docs/reference/conventions.md derives both.
//
// In 4, d / 64 (d / 12 beyond d = 256) is for the sums of CPUs. Tensor cores add 16 products a step and truncate the
// sum, by up to 2 u t. A CUDA device's bound therefore has d / 8. That pulls scores of many elements towards 0: d = 256
// and a score of 30 came out 4.4e-5 low, and d = 201 with ALiBi up to 1.47 of a bound with d / 64.
//
// With an fp8_e4m3 q, Hopper's products cut every term: a score is known to 2 * 2^-13 t, the LSE to (2 + d / 8) of
// 2^-13 t. The bounds of 2 and 3 then add 0.5 % of max|ref| and of the output scale for what the sums lose, and 2e-5
// more for each key where accumulation is fast. On the CPU, whose sums are fp32, tests also compare with the same
// numbers in fp32. The inputs are always in host memory; computed_on is the device that ran the call.
//
// With precision=tf32 on a device, oracle and base have operands that are rounded to tf32, and base rounds its weights,
// too. exact is the oracle of the operands as they are. Each number is compared with the nearer of oracle and exact,
// because rows that are not finite, and kernels without tensor cores, are computed in fp32. U in B is 2^-11.
Verdict judge(const Inputs& inputs, const reference::Dense& oracle, const reference::Dense& base,
              DeviceKind computed_on = DeviceKind::cpu, const reference::Dense* exact = nullptr);

// Judges each gradient by itself. The figures are those of the worst one:
//   1. not finite exactly where the reference is not (NaN or which infinity is not promised); 0 where nothing reaches
//   2. max|g - ref| <= 3 max|base - ref| + 2 rounding units of max|ref| + u (2 t + 16) max T, or <= max B
//   3. mean|g - ref| <= 2 mean|base - ref| + 1 rounding unit of mean|ref| + u (2 t + 16) mean T, or <= L
// T is the sum of the sizes of an element's terms, |P| (|dP| + |D|) |k| for dq, with the sums of the sizes of their own
// products in place of dP and D. P = e^(s - LSE) is known to u t. On CUDA 2 t is (2.5 + min(d, 128) / 32) t: tensor
// cores truncate the sums of a score.
// With softcap, 2 t / softcap is added to 2 t. B = u (2 t + 16) T + 3.5 U S + half an ulp + 2^-126, with U the rounding
// unit where the call has 16 bits, 2^-11 with products of tf32, else 0. S^2 is the sum of the squares of what is then
// stored in 16 bits, (|P dP| + 2 |P (dP - D)|) |k| for dq.
//
// Huge scores cannot be judged: exp(s - LSE) of an fp32 LSE is not known (nor is a softmax by the LSE it is given).
Verdict judge(const Inputs& inputs, const reference::DenseGradients& oracle, const reference::DenseGradients& base,
              DeviceKind computed_on = DeviceKind::cpu, const reference::DenseGradients* exact = nullptr);

// The derivatives of gradients are judged alike, with the sizes of the terms of tP, tdP and tD in T, and 2 sqrt(d_qk +
// d_v) u T more for the products in tS and tdP.

// Judges tout and tlse by 1 to 3 of the gradients, after out and lse have been judged. T is the sum of the sizes of an
// element's terms, those of the products in dS included; the products of tq and k, and of q and tk, add 2 sqrt(d) u T.
Verdict judge_tangents(const Inputs& inputs, const reference::DenseTangents& oracle,
                       const reference::DenseTangents& base, DeviceKind computed_on = DeviceKind::cpu,
                       const reference::DenseTangents* exact = nullptr);

// Judges a softmax over rows by 1 to 4, element by element: a score is known to u |scale x| and e^s to that share of
// itself. The backward is judged by 1 to 3 of the gradients with 2 and 1.5 in place of 3 and 2, T = |scale y| (|dy| +
// sum|dy y|), t = max|y| of a logarithm, else 0.
Verdict judge_softmax(const Inputs& inputs, const reference::Dense& oracle, const reference::Dense& base);

// Judges a quantize. Factors are powers of 2, and no element exceeds 448 factors. A block's factor is at most twice the
// least that holds its elements. A factor of a head or tensor is chosen before means and rotations are known: it is at
// most 8 times the least that holds the sums of the sizes of the elements' terms. Each element is within half a step
// of e4m3 of the rotated, centred one plus 2^-20 of the sizes of its terms. Means are right to 2^-20 of their columns'
// mean size. An element that is not finite, and every element that a rotation mixes with it, is NaN and counts nowhere
// else.
Verdict judge_quantized(const Inputs& inputs);

// Judges an append. Copied elements have the bits of the new ones, of an fp8_e4m3 cache those of their quotient. A
// rotated element is within half an ulp of its dtype, and 2^-22 of the sizes of its two products, of the float64 one.
Verdict judge_append(const Inputs& inputs);

// Judges a GEMM by 1 to 3 with e = (4 + k / 64) u T, T the sum of the sizes of an element's terms. B adds (4 + 2
// sqrt(k)) u T and half an ulp.
Verdict judge_flat_gemm(const Inputs& inputs, const reference::Dense& oracle, const reference::Dense& base);

// True if both are NaN, the same infinity, or both finite, or if a NaN stands for an infinity.
bool same_kind(float x, float reference);
// The verdict with `right` and `sentence`, from its errors and bounds or from a violation that was found before.
Verdict concluded(Verdict verdict, const std::string& worst, std::string violation, const Inputs& inputs);

inline bool can_judge(const Problem& problem, Distribution distribution) {
  return distribution != Distribution::huge || (!is_derivative(problem.op) && !problem.row_lse);
}

// Judges by the rule of the inputs' operator (check/operators.hpp). An FP8 attention is judged as the attention on what
// the CPU's quantize, which has a rule of its own, makes of q, k and v.
Verdict judge(Inputs& inputs, Executor& executor, DeviceKind computed_on = DeviceKind::cpu);

}  // namespace onepass::check
