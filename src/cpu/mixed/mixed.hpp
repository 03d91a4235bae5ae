// A serving engine's step in one call: single tokens, drafts and chunks of prompts, packed over a cache.
#pragma once
#include <string>

#include "problem/implementation.hpp"

namespace onepass::cpu {

const Implementation& mixed_implementation();  // "cpu.mixed"

}  // namespace onepass::cpu
