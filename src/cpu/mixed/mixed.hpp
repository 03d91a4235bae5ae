// A serving engine's step in one call: single tokens, drafts and chunks of prompts, packed over a cache.
#pragma once
#include <string>

#include "problem/implementation.hpp"

namespace onepass::cpu {

extern const Implementation kMixedImplementation;  // "cpu.mixed"

}  // namespace onepass::cpu
