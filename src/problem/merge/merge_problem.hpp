// From the tensors of a merge to its checked Problem.
#pragma once
#include "onepass/attention.hpp"

namespace onepass {

// Everything is checked, shared memory too. Throws Error with one sentence.
Problem merge_problem_of(const Tensors& tensors);

}  // namespace onepass
