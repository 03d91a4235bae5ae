// The rule for results that are sums over keys or rows and their derivatives: gradients and tangents.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "check/verdict/verdict.hpp"
#include "problem/roles.hpp"

namespace onepass::check {

// |scale| |q| max|k| over the call: the size of a score's largest terms.
double score_terms(const Inputs& inputs);
// The error of a product of a probability and, with softcap, of the cap's slope 1 - tanh^2, as a share of the sizes of
// the terms. The slope falls like e^(-2 |s| / softcap) and s is known to u t; truncating tensor cores add up to 4.5 u
// t.
double gradient_error(const Problem& problem, double score_terms, DeviceKind computed_on);

// Judges the output of one role. each: calls look(offset in the tensor, index in the dense results) for every number
// that the call writes. exact: the other reference of tf32, else oracle. unsure: the error as a share of the sizes of
// the terms. Says the first violation of all.
using Look = std::function<void(std::int64_t offset, std::int64_t index)>;
Verdict judge_sums(const Inputs& inputs, const RoleRow& row, const reference::DenseGradient& oracle,
                   const reference::DenseGradient& base, const reference::DenseGradient& exact, double unsure,
                   const std::function<void(const Look&)>& each, std::string& violation);

}  // namespace onepass::check
