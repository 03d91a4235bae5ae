// Explanations for machines that are not here.
#pragma once
#include <string>
#include <string_view>

#include "onepass/attention.hpp"
#include "onepass/export.h"
#include "onepass/problem.hpp"
#include "onepass/quantize.hpp"

namespace onepass::inline v0 {

// The text that explain() would print on a machine with a GPU of this architecture ("sm_80", "sm_90", ..), with the
// problem on that GPU. Needs neither a GPU nor a driver. Sizes that depend on the card are those of a common card of
// the architecture, which the second line names. Throws bad_value for an architecture that is not known.
ONEPASS_API std::string explain_for(std::string_view target, const Problem& problem);
// The same for the four steps of attention_fp8. The tensors' memory is not read.
ONEPASS_API std::string explain_fp8_for(std::string_view target, const Tensors& tensors,
                                        const Attention& attention = {}, const Fp8Options& options = {});

}  // namespace onepass::inline v0
