// The configs of fp8_e4m3: the kernel of forward.cuh with products of 8 bits.
#pragma once
#include <string>

#include "cuda/sm90/forward/config.hpp"
#include "problem/problem.hpp"
#include "problem/selected.hpp"

namespace onepass::sm90 {

// For a problem that has passed select_config's checks.
Selected<ForwardConfig> select_fp8_config(const Problem& problem);
// "fp32 sums every 512 keys"
std::string accumulation_of(const ForwardConfig& config);

}  // namespace onepass::sm90
