#include "problem/grammar/subject.hpp"

#include <algorithm>

#include "problem/operator.hpp"

namespace onepass {
std::optional<Op> op_named(std::string_view word) {
  for (std::size_t i = 0; i < kOps; ++i)
    if (word == word_of(static_cast<Op>(i))) return static_cast<Op>(i);
  return std::nullopt;
}

const RoleRow* role_named(std::string_view name) {
  const auto* row = std::ranges::find(kRoleTable, name, [](const RoleRow& r) { return std::string_view(r.name); });
  return row == kRoleTable.end() ? nullptr : row;
}

const RoleRow* role_of_strides(std::string_view key) {
  const RoleRow* row = key.ends_with("_strides") ? role_named(key.substr(0, key.size() - 8)) : nullptr;
  return row && row->role != Role::q && row->role != Role::k && row->role != Role::v ? row : nullptr;
}

}  // namespace onepass
