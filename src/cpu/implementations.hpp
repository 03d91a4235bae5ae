// What the CPU backend offers, best first.
#pragma once
#include <span>

#include "core/implementation.hpp"

namespace onepass::cpu {

std::span<const Implementation> implementations();

}  // namespace onepass::cpu
