#include "cuda/backward_jvp/backward_jvp.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "cuda/attention/backward/host.hpp"
#include "cuda/backward_jvp/state.hpp"

namespace onepass::cuda::backward_jvp {
namespace {

struct Tiles {
  Tiles(const Problem&, const Plan& of) : plan(of) {}

  std::string describe() const {
    const SecondConfig& c = plan.config;
    return text(c.held(), " rows or keys x ", c.by_rows, " keys or ", c.by_keys, " rows, ", c.warps,
                c.share == 1 ? " warps, " : " warps in pairs, ", c.copy_bytes, "-byte copies");
  }
  void launch(const Call& call, bool, const PlannedKernel& kernel, const Grid& grid,
              PlainBackwardParams& params) const {
    call.launch(kernel, grid, params);
  }

  const Plan plan;
};

Decision plan(const Request& request) {
  return plan_on_device<State<Tiles>>(request, [&](const DeviceFacts& device, const Problem&) -> Selected<Plan> {
    if (device.major < 8) return refuse(why_too_old(device));
    return select_plan(*packed_problem(request.problem), device.shared_bytes);
  });
}

}  // namespace

Selected<backward_plain::Plan> select_plain(const Problem& p) {
  Selected<backward_plain::Plan> plan = backward_plain::select_plan(p);
  if (!plan) return plan;
  const BackwardFeatures& f = plan->features.backward;
  if (!f.dq && !f.dk && !f.dv) return refuse("computes derivatives of dq, dk and dv (got none of them)");
  if (p.out_dtype != p.dtype)
    return refuse("does not support an out of another dtype than q (got ", name_of(p.out_dtype), " and ",
                  name_of(p.dtype), ")");
  return plan;
}

void set_parts(backward_plain::Plan& plan, int parts) {
  plan.features.mark_parts = parts;
  plan.shape.key_warps = plan.shape.block_q / 16;
}

std::int64_t blocks_of(bool keys, const PlainBackwardParams& p, const backward_plain::Plan& plan) {
  const BackwardFeatures& f = plan.features.backward;
  if (keys) return f.dk || f.dv || f.dslopes ? std::int64_t{p.heads_kv} * p.key_tiles : 0;
  return f.dq ? std::int64_t{p.heads} * p.row_tiles : 0;
}

PlainBackwardParams decided_params(const Problem& p, const backward_plain::Plan& plan, int held, int l2_bytes) {
  PlainBackwardParams b = backward_plain::decided_params(p, plan, l2_bytes);
  b.row_tiles = static_cast<int>(padded_blocks(p.varlen, p.batch, p.seq_q, p.total_q, held));
  b.key_tiles = static_cast<int>(padded_blocks(p.varlen, p.batch, p.seq_k, p.total_k, held));
  // Two thirds of L2 for the tensors that stream past: keys past rows, rows of all heads of a group past keys.
  const auto bytes = static_cast<std::int64_t>(size_of(p.dtype)) * 2 * (p.dim_qk + p.dim_v);
  const auto fitting = [&](std::int64_t tokens, std::int64_t heads) {
    return static_cast<int>(std::clamp<std::int64_t>(l2_bytes * 2ll / 3 / std::max<std::int64_t>(1, tokens * bytes), 1,
                                                     std::max<std::int64_t>(1, heads)));
  };
  b.row_group = fitting(p.varlen ? p.total_k : p.seq_k, p.heads_q);
  b.key_group = fitting((p.varlen ? p.total_q : p.seq_q) * p.group(), p.heads_kv);
  return b;
}

constinit const Implementation kImplementation{"cuda.backward_jvp", plan, kBackwardJvp};

}  // namespace onepass::cuda::backward_jvp
