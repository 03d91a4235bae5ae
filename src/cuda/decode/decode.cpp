#include "cuda/decode/decode.hpp"

#include <algorithm>
#include <tuple>

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/compile/wgmma_source.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/sm80/host.hpp"
#include "cuda/sm90/host.hpp"
#include "problem/roles.hpp"

namespace onepass::decode {
namespace {

class State final : public cuda::KernelState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, DecodeConfig config, const cuda::Part& part)
      : KernelState(request, device),
        config_(config),
        most_(device.multiprocessors * blocks_at_once(cuda::features_of(*problem), config, device.shared_bytes)),
        sharing_(sharing_of(*problem, config, config.row_blocks ? 1 : heads_together(*problem, most_))),
        share_(share_of(*problem, sharing_, most_)),
        early_(part.early),
        maps_(key_maps(*problem, config)),
        decided_(decided_params(*problem, config, sharing_, share_, part)) {
    idle_ = groups_of(*problem, sharing_) == 0 || rows_of(*problem) == 0;  // without query heads, too
    workspace_bytes = idle_ ? 0 : workspace_bytes_of(*problem, sharing_, share_.blocks);
    const ForwardFeatures features = cuda::features_of(*problem);
    const auto values = [&](bool even) {
      config.even = even;
      return std::tuple{features, config, cuda::mods_key(*problem)};
    };
    const auto print = [p = problem](const auto& all, const std::string& arch) {
      const auto& [f, c, mods] = all;
      return program_of(f, c, arch, mods_of(*p));
    };
    const bool even = share_.splits != 0;
    kernel_ = kernels_.add(values(even), layout_of(features, config).total, print);
    if (even || may_be_even(*problem, sharing_)) kernels_.add_elsewhere(values(!even), print);
  }

  std::string describe() const override {
    const DecodeConfig& c = config_;
    return text(rows_of(*problem), " rows per K/V head", c.row_blocks ? text(" in blocks of ", c.rows) : "", ", ",
                c.prompts ? text(c.wgmma() ? text(c.warps / 4, " warpgroups") : text(c.warps, " warps"),
                                 " with all keys of their rows")
                : c.shares_tiles() ? text(c.warps, " warps, ", c.parts, " of them with a part of each tile")
                                   : text(c.warps, " warps in ", c.share, " teams"),
                ", tiles of ", c.block_n, " keys, ", c.slots, " tiles prefetched per team, ",
                sentence_of(share_, sharing_), ", ", c.copy_bytes, "-byte copies, ", kernel_->shared_bytes,
                " bytes of shared memory", cuda::precision_of(*problem));
  }

 private:
  void launch(const cuda::Call& call) const override {
    DecodeParams params = decided_;
    bind(params, call.tensors, call.workspace);
    params.counters = counters_of(call);
    const cuda::Grid by{share_.blocks * sharing_.co_scheduled, config_.all_threads(), early_};
    if (config_.copy_warps == 0) return call.launch(*kernel_, by, params);
    CopiedParams copied{maps_.at(params, cuda::tensor_map), params};
    call.launch(*kernel_, by, copied);
  }

  const DecodeConfig config_;
  const int most_;  // CTAs at a time
  const Sharing sharing_;
  const Share share_;
  const bool early_;
  const KeyMapShapes maps_;
  const DecodeParams decided_;
  const cuda::PlannedKernel* kernel_;
};

template <Rows rows>
Selected<DecodeConfig> config_on(const cuda::DeviceFacts& device, const Problem& p) {
  if (device.major < 8) return refuse(cuda::why_too_old(device));
  return select_config(p, device.shared_bytes, device.major == 9, rows);
}

// Sequences of few rows among others have kernels of their own in cuda.mixed.
Decision plan_alone(const Request& request) {
  const Problem& p = *request.problem;
  const bool mixed = p.varlen && !p.packed_k() && p.group() <= kMaxRows && rows_of(p) > kMaxRows;
  if (p.batch_invariant && mixed)
    return Decision::no("does not support packed rows over a cache with batch_invariant; cuda.mixed does");
  return plan(request, {});
}
Decision plan_fp8_alone(const Request& request) { return plan_fp8(request, {}); }

}  // namespace

Decision plan(const Request& request, const cuda::Part& part) {
  return cuda::plan_on_device<State>(request, config_on<Rows::few>, part);
}
Decision plan_fp8(const Request& request, const cuda::Part& part) {
  return cuda::plan_on_device<State>(request, config_on<Rows::any_fp8>, part);
}

DecodeParams decided_params(const Problem& p, const DecodeConfig& c, const Sharing& sharing, const Share& share,
                            const cuda::Part& part) {
  return decided_params(p, sharing, {c.block_m(), c.block_n, c.warps}, share, part);
}

KeyMapShapes key_maps(const Problem& p, const DecodeConfig& c) {
  if (c.copy_warps == 0) return {};
  const sm90::MapRows keys = sm90::rows_of_keys(p);
  const auto shape = [&](const Dims& stride, std::int64_t dim) {
    return cuda::TensorMapShape(p.key_dtype(), {dim, keys.tokens, p.heads_kv, keys.batch},
                                {stride[2], stride[1], stride[0]}, std::max(c.box_rows, 8));
  };
  return {c.box_rows != 0 && keys.any(), shape(p.layout.k, p.dim_qk), shape(p.layout.v, p.dim_v)};
}
KeyMaps KeyMapShapes::at(const DecodeParams& params, cuda::MapTensor map_tensor) const {
  return {map_tensor(keys ? params.k : params.q, k), map_tensor(keys ? params.v : params.q, v)};
}

std::string mods_of(const Problem& p) {
  return cuda::mods_source(p) + (p.mask_mod.empty() ? "" : cuda::mask_bounds_source(p));
}
cuda::KernelProgram program_of(const ForwardFeatures& f, const DecodeConfig& c, const std::string& arch,
                               const std::string& mods) {
  return {"cuda/decode/decode.cuh",
          "attention_decode",
          text(cuda::features_source(f),
               cuda::config_line("cuda/decode/decode_config.hpp", "onepass::mma", "decode::DecodeConfig config", c),
               sm80::products_of(f.attention.input)),
          c.copy_warps ? "sm_90a" : arch,
          mods,
          c.wgmma()
              ? cuda::wgmma_source({c.block_n, round_up(f.attention.dim_v, 16)}, sm90::operand_of(f.attention.input))
              : ""};
}

constinit const Implementation kImplementation{.name = "cuda.decode", .plan = plan_alone, .unified_max = true};
constinit const Implementation kFp8Implementation{.name = "cuda.decode_fp8", .plan = plan_fp8_alone};

}  // namespace onepass::decode
