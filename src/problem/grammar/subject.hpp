// The subjects of the words of a problem line, and which operators have a use for them (docs/reference/problem.md).
#pragma once
#include <optional>
#include <string_view>

#include "problem/roles.hpp"

namespace onepass {

std::optional<Op> op_named(std::string_view word);
const RoleRow* role_named(std::string_view name);  // nullptr: none
// Of name_strides=..; q, k and v have theirs in strides=..
const RoleRow* role_of_strides(std::string_view key);

// The subject of a word: two words of one line may not speak of the same, but for buffers.
std::string_view subject_of(std::string_view word);
// True if an operator has a use for words of the subject; each tensor's strides are of those that have the tensor.
bool speaks_of(Op op, std::string_view subject);

}  // namespace onepass
