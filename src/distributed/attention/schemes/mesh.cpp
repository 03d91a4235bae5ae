// A mesh: heads are dealt out within a node, and the keys of other nodes come (gather). Only K and V of a rank's own
// heads travel between nodes.
#include "distributed/attention/schemes/dealt.hpp"
#include "distributed/attention/schemes/schemes.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

// A rank's heads have the rows of its node, a shard of the layout of nodes.
OfHeads between_nodes(Transport& between, const ContextParallel& nodes) {
  const auto job_of = [&](const Job& heads, const AttentionTensors& tensors) {
    return Job{between, nodes, tensors, heads.options, heads.launch, heads.visibility, heads.needs, heads.first_head};
  };
  return {.forward =
              [=](const Job& heads, const Keys& keys, const RowResults& into) {
                AttentionTensors t = heads.tensors;
                t.k = keys.k, t.v = keys.v;
                t.out = into.out, t.lse = into.lse, t.row_max = into.row_max;
                gather_forward(job_of(heads, t));
              },
          .backward =
              [=](const Job& heads, const Keys& keys, const Tensor& dq, const KeyGradients& into) {
                AttentionTensors t = heads.tensors;
                t.k = keys.k, t.v = keys.v;
                t.dq = dq, t.dk = into[0], t.dv = into[1];
                gather_backward(job_of(heads, t));
              }};
}

}  // namespace

void mesh_forward(const Job& job, Transport& between, const ContextParallel& nodes) {
  dealt_forward(job, between_nodes(between, nodes));
}

void mesh_backward(const Job& job, Transport& between, const ContextParallel& nodes) {
  dealt_backward(job, between_nodes(between, nodes));
}

}  // namespace onepass::inline v0::context_parallel
