// K and V go from rank to rank, and each computes with those that it has: two shards in memory.
#pragma once
#include "distributed/attention/call.hpp"

namespace onepass::inline v0::context_parallel {

void ring_forward(const Job& job);
void ring_backward(const Job& job);

}  // namespace onepass::inline v0::context_parallel
