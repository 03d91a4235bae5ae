// Explanations of calls, and for machines that are not here.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "onepass/append.hpp"
#include "onepass/attention.hpp"
#include "onepass/export.h"
#include "onepass/problem.hpp"
#include "onepass/quantize.hpp"
#include "onepass/softmax.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

// explain() of the problem that a call's tensors and options make, for every operator. The memory of the tensors is not
// written.
ONEPASS_API std::string explain(const Tensors& tensors, const Attention& attention = {});
ONEPASS_API std::string explain_append(const AppendTensors& tensors, bool interleaved = false);
ONEPASS_API std::string explain_merge(std::span<const ConstTensor> outs, std::span<const ConstTensor> lses,
                                      const Tensor& out, const Tensor& lse = {});
ONEPASS_API std::string explain_softmax(const ConstTensor& x, const Tensor& y, const Tensor& lse = {},
                                        const SoftmaxOptions& options = {}, const ConstTensor& bool_mask = {});
ONEPASS_API std::string explain_softmax_backward(const ConstTensor& y, const ConstTensor& dy, const Tensor& dx,
                                                 const SoftmaxOptions& options = {});
ONEPASS_API std::string explain_quantize(const ConstTensor& x, const Tensor& y, const Tensor& descale,
                                         const Tensor& mean = {}, const QuantizeOptions& options = {});
ONEPASS_API std::string explain_flat_gemm(const ConstTensor& x, const ConstTensor& w, const Tensor& y,
                                          const ConstTensor& column_bias = {});
ONEPASS_API std::string explain_linear(const ConstTensor& x, const ConstTensor& w, const Tensor& y,
                                       const ConstTensor& column_bias = {});

// The text that explain() would print on a machine with a GPU of this architecture ("sm_80", "sm_90", ..), with the
// problem on that GPU. Needs neither a GPU nor a driver. Sizes that depend on the card are those of a common card of
// the architecture, which the second line names. Throws bad_value for an architecture that is not known.
ONEPASS_API std::string explain_for(std::string_view target, const Problem& problem);
// The same for the four steps of attention_fp8. The tensors' memory is not read.
ONEPASS_API std::string explain_fp8_for(std::string_view target, const Tensors& tensors,
                                        const Attention& attention = {}, const Fp8Options& options = {});

}  // namespace onepass::inline v0
