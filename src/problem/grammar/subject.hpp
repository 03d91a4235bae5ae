// The names in problem lines: operators and tensors (docs/reference/problem.md).
#pragma once
#include <optional>
#include <string_view>

#include "problem/roles.hpp"

namespace onepass {

std::optional<Op> op_named(std::string_view word);
const RoleRow* role_named(std::string_view name, Op op);  // the operator's, or another's; nullptr: none
// The role that name_strides=.. names; attention's q, k and v have theirs in strides=..
const RoleRow* role_of_strides(std::string_view key, Op op);

}  // namespace onepass
