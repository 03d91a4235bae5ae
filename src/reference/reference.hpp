// The float64 two-pass algorithm as an implementation: slow, exact, and only taken when asked for by name.
#pragma once
#include <span>
#include <string_view>

#include "problem/implementation.hpp"

namespace onepass::reference {

std::span<const Implementation> reference_implementations();  // a row per operator
inline bool is_reference(const Implementation& row) {
  return (row.attention ? *row.attention : row).name == std::string_view("reference");
}

}  // namespace onepass::reference
