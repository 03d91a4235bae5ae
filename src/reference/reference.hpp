// The float64 two-pass algorithm as an implementation: slow, exact, and only taken when asked for by name.
#pragma once
#include "core/implementation.hpp"

namespace onepass::reference {

const Implementation& reference_implementation();

}  // namespace onepass::reference
