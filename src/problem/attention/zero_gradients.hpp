// Gradients that are known without a kernel.
#pragma once
#include "problem/problem.hpp"

namespace onepass {

// True of a backward whose shapes leave no pair of a row and a key to sum over. Its gradients are 0. A packed one may
// have tokens that it must leave alone, so its sums are made.
bool has_zero_gradients(const Problem& problem);

}  // namespace onepass
