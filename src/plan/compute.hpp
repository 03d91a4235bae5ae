// A call of one operator: a problem of its tensors, a plan, memory for the call, and the run.
#pragma once
#include <string_view>

#include "onepass/onepass.hpp"

namespace onepass::plan {

// Throws before anything is written. Tensors that describe another operator than `op` are refused by name.
void compute(Op op, const Tensors& tensors, const Attention& attention, const Launch& launch,
             std::string_view implementation = {});

}  // namespace onepass::plan
