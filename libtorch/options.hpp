// The options of an attention, from the arguments of PyTorch's operator.
#pragma once
#include "libtorch/values.hpp"
#include "problem/operator.hpp"

namespace onepass::libtorch {

// Those that the operator takes, by the table of options. Without the seed that PyTorch's generator has drawn.
CallOptions options_of(Op op, const Arguments& arguments);
// True for "bshd".
bool tokens_first(std::string_view layout);

}  // namespace onepass::libtorch
