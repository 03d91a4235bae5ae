// The configs of fp8_e4m3: the kernel of forward.cuh with products of 8 bits.
#pragma once
#include <string>

#include "cuda/sm90/forward/config.hpp"
#include "onepass/problem.hpp"

namespace onepass::sm90 {

// Of a problem that has passed select_config's checks. False, with a sentence, for what e4m3 cannot do here.
bool select_fp8_config(const Problem& problem, ForwardConfig& config, std::string& why);
// "summed in fp32 every 512 keys"
std::string accumulation_of(const ForwardConfig& config);

}  // namespace onepass::sm90
