#include "cpu/implementations.hpp"

namespace onepass::cpu {

std::span<const Implementation> implementations() { return {}; }

}  // namespace onepass::cpu
