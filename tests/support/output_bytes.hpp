// The bytes of all outputs of a call, to compare two calls bit by bit.
#pragma once
#include <string>

#include "check/inputs.hpp"
#include "problem/roles.hpp"

namespace onepass::test {

inline std::string output_bytes(const check::Inputs& inputs) {
  std::string bytes;
  for (const RoleRow& row : kRoleTable) {
    const check::Buffer& b = inputs.buffer(row.role);
    if (writes(row, inputs.problem.op)) bytes.append(reinterpret_cast<const char*>(b.data()), b.bytes());
  }
  return bytes;
}

}  // namespace onepass::test
