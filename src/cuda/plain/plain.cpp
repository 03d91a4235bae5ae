#include "cuda/plain/plain.hpp"

#include <utility>

#include "base/text.hpp"
#include "cuda/attention/forward_launch.hpp"
#include "cuda/attention/scores/mods.hpp"

namespace onepass::cuda {
namespace {

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const ForwardFeatures& features)
      : KernelState(request, device),
        forward_(kernels_, *problem, device, kPlainTile, problem),
        decided_(plain_params(*problem, forward_.decided)) {
    workspace_bytes = forward_.workspace_bytes;
    idle_ = decided_.tiles == 0;
    kernel_ = kernels_.add(std::pair{features, mods_key(*problem)}, 0,
                           [p = problem](const auto& values, const std::string& arch) {
                             return plain_program(values.first, arch, mods_source(*p));
                           });
  }

  std::string describe() const override {
    return text("one row per warp, ", kPlainRows, " rows per CTA, scalar products in fp32");
  }

 private:
  void launch(const Call& call) const override {
    PlainParams params = decided_;
    static_cast<EntropyParams&>(params) = forward_.params(call);
    params.recomputed.at = static_cast<int*>(call.tensors.recomputed.data);
    call.launch(*kernel_, {params.tiles, 32 * kPlainWarps}, params);
  }

  const ForwardLaunch forward_;
  const PlainParams decided_;
  const PlannedKernel* kernel_;
};

Selected<ForwardFeatures> features_on(const DeviceFacts& device, const Problem& p) {
  auto features = select_plain(p);
  if (features && device.major < 8) return refuse(why_too_old(device));
  return features;
}

}  // namespace

Selected<ForwardFeatures> select_plain(const Problem& p) {
  if (p.batch * p.heads_q > kMaxPosition)
    return refuse("batch x heads_q must be at most ", kMaxPosition, " (got ", p.batch * p.heads_q, ")");
  if (std::string sentence = why_too_many(p, tile_bound(p, kPlainTile)); !sentence.empty()) return refuse(sentence);
  ForwardFeatures features = features_of(p);
  features.attention.tf32 = false;  // no tensor cores
  return features;
}

KernelProgram plain_program(const ForwardFeatures& f, const std::string& arch, const std::string& mods) {
  return {"cuda/plain/plain.cuh", "attention_plain", features_source(f), arch, mods};
}

PlainParams plain_params(const Problem& p, const EntropyParams& params) {
  PlainParams all{params, 0, {}};
  if (!p.unified_max) return all;
  all.unified_max = *p.unified_max;
  fill_strides(all.recomputed.stride, p.layout.recomputed);
  return all;
}

constinit const Implementation kPlainImplementation{
    .name = "cuda.plain", .plan = plan_row<State, features_on>, .unified_max = true};

}  // namespace onepass::cuda
