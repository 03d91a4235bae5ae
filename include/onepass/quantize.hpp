// Numbers to fp8_e4m3 with their factors, and attention on numbers that are quantized for it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "onepass/attention.hpp"
#include "onepass/executor.hpp"
#include "onepass/export.h"
#include "onepass/launch.hpp"
#include "onepass/plan.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

struct QuantizeOptions {
  // Rows are rotated: column c changes its sign where the seed's draw says so, then the largest power of two that
  // divides n many neighbours are multiplied by a Hadamard matrix over its root (incoherent processing, Shah et al.,
  // FlashAttention-3, arXiv:2407.08608, section 3.3). Outliers spread over the row. Q and K rotated by one seed have
  // the products of Q and K.
  bool hadamard = false;
  std::uint64_t seed = 0;
};

// The tensors of a quantize, as quantize() documents them.
struct QuantizeTensors {
  ConstTensor x{};
  Tensor y{}, descale{}, mean{};
};

// x, [.., rows, n] of rank 1 to 4 and any strides, fp32, fp16 or bf16, n from 1 to 256, to y of its shape and
// fp8_e4m3. descale, fp32 [batch|1, heads|1, blocks of 128 rows|1] (x's leading dimensions, 1 where it has none),
// becomes y's factors: what it has size 1 in shares one, and a factor of a block is of one head. Factors are powers of
// 2, so that dividing by them rounds nothing, and large enough that no number is cut off at 448: of a block the least,
// else by a bound. mean, fp32 [batch, heads, n], if it is given, becomes the mean of each column of a head, which is
// taken out first: v_mean of an attention gives it back, as a softmax's weights add up to 1.
//
// A NaN or an infinity becomes NaN, with all that a rotation mixes with it, and counts neither in factors nor in means.
// Numbers beyond 1e36 may overflow in a rotation. Throws Error, with all outputs untouched, if anything does not fit.
ONEPASS_API void quantize(const ConstTensor& x, const Tensor& y, const Tensor& descale, const Tensor& mean = {},
                          const QuantizeOptions& options = {}, const Launch& launch = {});

[[nodiscard]] ONEPASS_API Plan make_plan(const QuantizeTensors& tensors, const QuantizeOptions& options = {},
                                         std::string_view implementation = {}, const Executor* executor = nullptr);
ONEPASS_API void run(const Plan& plan, const QuantizeTensors& tensors, const Launch& launch = {});
ONEPASS_API std::string explain(const QuantizeTensors& tensors, const QuantizeOptions& options = {});

// attention() of fp32, fp16 or bf16 q, k and v, packed or not, which are quantized to fp8_e4m3 first; out has q's dtype
// or is fp32. A forward without a cache. `implementation` is one of FP8 attention ("cpu.quantize+flash.avx2"), or one
// of attention ("cpu.flash.avx2"). Throws as attention().
ONEPASS_API void attention_fp8(const AttentionTensors& tensors, const Attention& attention = {},
                               const Fp8Options& options = {}, const Launch& launch = {},
                               std::string_view implementation = {});
// Its plan, which run() takes with the tensors. The problem line has the word fp8.
[[nodiscard]] ONEPASS_API Plan make_plan(const AttentionTensors& tensors, const Attention& attention,
                                         const Fp8Options& options, std::string_view implementation = {},
                                         const Executor* executor = nullptr);
ONEPASS_API std::string explain(const AttentionTensors& tensors, const Attention& attention, const Fp8Options& options);
// The same on a GPU that need not be here: see explain_for() of a line (onepass/plan.hpp).
ONEPASS_API std::string explain_for(std::string_view target, const AttentionTensors& tensors,
                                    const Attention& attention, const Fp8Options& options);

}  // namespace onepass::inline v0
