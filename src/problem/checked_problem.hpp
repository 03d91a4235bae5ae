// validate(), and what reading a problem's expressions for it has made.
#pragma once
#include "expression/expression.hpp"
#include "problem/problem.hpp"

namespace onepass {

// Throws as validate() does. The expressions of a problem on the CPU are parsed here and nowhere else; on a device,
// whose compiler reads them, and without expressions, the result holds none.
Mods checked_mods(const Problem& problem);

}  // namespace onepass
