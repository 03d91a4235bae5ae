#include "cuda/backward_jvp/backward_jvp.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/text.hpp"
#include "cuda/attention/backward/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/host/kernel_state.hpp"

namespace onepass::cuda::backward_jvp {
namespace {

namespace plain = backward_plain;

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const Plan& plan)
      : KernelState(request, device),
        seen_(packed_problem(problem)),
        plan_(plan),
        places_(plain::places_of(*seen_, plan.plain)),
        decided_(decided_params(*seen_, plan, device.l2_bytes)),
        mask_(kernels_, *seen_, plain::mask_tile_of(plan.plain.shape), problem) {
    for (const plain::Part part : plain::kParts) {
      add(plain::blocks_of(part, decided_, plan.plain), plain::threads_of(part),
          plain::shared_bytes_of(part, plan.plain.shape), std::tuple{part, plan.plain.features, plan.plain.shape},
          [part, of = plan.plain](const std::string& arch, const std::string& mods) {
            return plain::program_of(part, of, arch, mods);
          });
      if (part != plain::Part::stats) continue;
      for (const bool keys : {false, true})
        add(blocks_of(keys, decided_, plan), plan.config.threads(), shared_bytes_of(keys, plan),
            std::tuple{keys, plan.plain.features, plan.plain.shape, plan.config},
            [keys, of = plan](const std::string& arch, const std::string& mods) {
              return program_of(keys, of, arch, mods);
            });
    }
    idle_ = launches_.empty();
    workspace_bytes = idle_ ? 0 : places_.total;
  }

  std::string describe() const override {
    const SecondConfig& c = plan_.config;
    return text(c.held(), " rows or keys x ", c.by_rows, " keys or ", c.by_keys, " rows, ", c.warps,
                c.share == 1 ? " warps, " : " warps in pairs, ", c.copy_bytes, "-byte copies, ",
                shared_bytes_of(false, plan_), " and ", shared_bytes_of(true, plan_), " bytes of shared memory",
                precision_of(*problem), ", deterministic", packing_of(*problem, *seen_));
  }

 private:
  struct Launched {
    std::int64_t blocks;
    int threads;
    const PlannedKernel* kernel;
  };
  // program(arch, mods)
  template <class Values, class Program>
  void add(std::int64_t blocks, int threads, int shared_bytes, const Values& values, Program program) {
    if (blocks == 0) return;
    launches_.push_back({blocks, threads,
                         kernels_.add(std::tuple_cat(values, std::tuple{mods_key(*seen_)}), shared_bytes,
                                      [p = seen_, program](const auto&, const std::string& arch) {
                                        return program(arch, mods_source(*p, 2));
                                      })});
  }

  void launch(const Call& call) const override {
    PlainBackwardParams params = decided_;
    plain::bind(params, with_derivatives_as_gradients(call.tensors), call.workspace, places_);
    mask_.pack(call, static_cast<std::byte*>(call.workspace) + places_.mask, params.mask);
    for (const auto& [blocks, threads, kernel] : launches_) call.launch(*kernel, {blocks, threads}, params);
  }

  const std::shared_ptr<const Problem> seen_;  // by the kernels
  const Plan plan_;
  const plain::Places places_;
  const PlainBackwardParams decided_;
  const PackedMask mask_;
  std::vector<Launched> launches_;
};

Decision plan(const Request& request) {
  return plan_on_device<State>(request, [&](const DeviceFacts& device, const Problem&) -> Selected<Plan> {
    if (device.major < 8) return refuse(why_too_old(device));
    return select_plan(*packed_problem(request.problem), device.shared_bytes);
  });
}

}  // namespace

std::int64_t blocks_of(bool keys, const PlainBackwardParams& p, const Plan& plan) {
  const BackwardFeatures& f = plan.plain.features.backward;
  if (keys) return f.dk || f.dv || f.dslopes ? std::int64_t{p.heads_kv} * p.key_tiles : 0;
  return f.dq ? std::int64_t{p.heads} * p.row_tiles : 0;
}

PlainBackwardParams decided_params(const Problem& p, const Plan& plan, int l2_bytes) {
  PlainBackwardParams b = plain::decided_params(p, plan.plain, l2_bytes);
  b.row_tiles = static_cast<int>(padded_blocks(p.varlen, p.batch, p.seq_q, p.total_q, plan.config.held()));
  b.key_tiles = static_cast<int>(padded_blocks(p.varlen, p.batch, p.seq_k, p.total_k, plan.config.held()));
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
