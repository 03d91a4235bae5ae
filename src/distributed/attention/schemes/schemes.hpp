// The schemes, each as a forward and a backward of one rank.
#pragma once
#include "distributed/attention/call.hpp"

namespace onepass::inline v0::context_parallel {

// The keys that a rank sees come to it, so each query meets all its keys in one call.
void gather_forward(const Job& job);
void gather_backward(const Job& job);

// K and V go from rank to rank, and each computes with those that it has: two shards in memory.
void ring_forward(const Job& job);
void ring_backward(const Job& job);

// Heads are dealt out, each with the whole sequence.
void ulysses_forward(const Job& job);
void ulysses_backward(const Job& job);

// Heads are dealt out within a node, whose ranks and rows are the job's; between, nodes: the ranks of other nodes that
// have this rank's place, and the layout of nodes.
void mesh_forward(const Job& job, Transport& between, const ContextParallel& nodes);
void mesh_backward(const Job& job, Transport& between, const ContextParallel& nodes);

}  // namespace onepass::inline v0::context_parallel
