// Problem lines for callers that name the device apart from the line.
#pragma once
#include <string_view>

#include "problem/problem.hpp"

namespace onepass {

// parse_problem(), with `device` for a line that names none. What CUDA alone takes, such as a lambda in a score_mod, is
// an error in a problem on the CPU, so the device must be known when the line is read.
Problem parse_problem_on(Device device, std::string_view line);

}  // namespace onepass
