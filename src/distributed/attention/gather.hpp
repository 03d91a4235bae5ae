// The keys that a rank sees come to it, so each query meets all its keys in one call.
#pragma once
#include "distributed/attention/call.hpp"

namespace onepass::inline v0::context_parallel {

void gather_forward(const Job& job);
void gather_backward(const Job& job);

}  // namespace onepass::inline v0::context_parallel
