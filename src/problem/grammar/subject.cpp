#include "problem/grammar/subject.hpp"

#include <algorithm>

#include "problem/operator.hpp"

namespace onepass {
std::optional<Op> op_named(std::string_view word) {
  for (const Operator* op : kOperators)
    if (word == op->word) return *op;
  return std::nullopt;
}

const RoleRow* role_named(std::string_view name, Op op) {
  const RoleRow* found = nullptr;
  for (const RoleRow& row : kRoleTable)
    if (row.name == name && (!found || use_of(row, op) != Use::none)) found = &row;
  return found;
}

const RoleRow* role_of_strides(std::string_view key, Op op) {
  const RoleRow* row = key.ends_with("_strides") ? role_named(key.substr(0, key.size() - 8), op) : nullptr;
  const bool in_one = row && (row->role == Role::q || row->role == Role::k || row->role == Role::v);
  return in_one && (strides_in_one(op) || use_of(*row, op) == Use::none) ? nullptr : row;
}

}  // namespace onepass
