// fp8_e4m3 on tiles of bf16, which holds every e4m3 number: q and k times the powers of 2 of their factors become bf16,
// and v times its factors, rounded where these are not powers of 2; the attention is one of bf16, whose scores are
// multiplied by what is left of the factors.
#pragma once
#include <string>

#include "problem/implementation.hpp"

namespace onepass::cpu::amx {

// Refusals beyond those of the attention on bf16; of a problem whose keys are fp8_e4m3.
std::string refuses_e4m3(const Problem& problem);
// The attention that is left when all are bf16, contiguous and without factors.
Problem in_bf16(const Problem& problem);
// `inner`: the decided attention on in_bf16().
Decision with_e4m3(const Request& request, Decision inner);

}  // namespace onepass::cpu::amx
