// What every tensor of a call must be before anything else of it is read.
#pragma once
#include <string_view>

#include "onepass/tensor.hpp"

namespace onepass {

// Given, of a rank, dtype and device that exist, without negative sizes, with data if it has elements. Throws Error.
void check_tensor(std::string_view name, const ConstTensor& t);

// No two of its elements are one. Throws Error.
void check_output(std::string_view name, const ConstTensor& t);

}  // namespace onepass
