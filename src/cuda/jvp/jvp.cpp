#include "cuda/jvp/jvp.hpp"

#include <algorithm>
#include <tuple>

#include "base/text.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/host/kernel_state.hpp"
#include "cuda/jvp/launch.hpp"

namespace onepass::cuda::jvp {
namespace {

class State final : public cuda::KernelState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const JvpConfig& config)
      : KernelState(request, device),
        seen_(cuda::packed_problem(problem)),
        config_(config),
        launch_(kernels_, *seen_, device, tile_shape_of(config), problem) {
    const JvpFeatures features = features_of(*seen_);
    workspace_bytes = launch_.workspace_bytes;
    idle_ = launch_.decided.tiles == 0;
    kernel_ = kernels_.add(std::tuple{features, config, cuda::mods_key(*seen_)}, layout_of(features, config).total,
                           [p = seen_](const auto& values, const std::string& arch) {
                             const auto& [f, c, mods] = values;
                             return program_of(f, c, arch, cuda::mods_source(*p, 1));
                           });
  }

  std::string describe() const override {
    const JvpConfig& c = config_;
    return text(c.block_m(), " x ", c.block_n, " tiles, ", c.warps, " warps of ", 16 * c.row_tiles,
                c.share == 1 ? " rows, " : " rows in pairs, ", c.stages,
                c.stages == 1 ? " K/V stage, " : " K/V stages, ", c.copy_bytes, "-byte copies, ", kernel_->shared_bytes,
                " bytes of shared memory", cuda::precision_of(*problem), cuda::packing_of(*problem, *seen_));
  }

 private:
  void launch(const cuda::Call& call) const override {
    JvpParams params = launch_.params(call);
    call.launch(*kernel_, {std::min(params.tiles, config_.blocks * device_.multiprocessors), config_.threads()},
                params);
  }

  const std::shared_ptr<const Problem> seen_;  // by the kernel
  const JvpConfig config_;
  const Launch launch_;
  const cuda::PlannedKernel* kernel_;
};

class PlainState final : public cuda::KernelState {
 public:
  PlainState(const Request& request, const cuda::DeviceFacts& device, const JvpFeatures& features)
      : KernelState(request, device), launch_(kernels_, *problem, device, kPlainTile, problem) {
    workspace_bytes = launch_.workspace_bytes;
    idle_ = launch_.decided.tiles == 0;
    kernel_ = kernels_.add(std::pair{features, cuda::mods_key(*problem)}, 0,
                           [p = problem](const auto& values, const std::string& arch) {
                             return plain_program(values.first, arch, cuda::mods_source(*p, 1));
                           });
  }

  std::string describe() const override {
    return text("one row per warp, ", kJvpPlainRows, " rows per CTA, scalar products in fp32");
  }

 private:
  void launch(const cuda::Call& call) const override {
    JvpParams params = launch_.params(call);
    call.launch(*kernel_, {params.tiles, 32 * kJvpPlainWarps}, params);
  }

  const Launch launch_;
  const cuda::PlannedKernel* kernel_;
};

Decision plan(const Request& request) {
  const auto select = [&](const cuda::DeviceFacts& device, const Problem&) -> Selected<JvpConfig> {
    if (device.major < 8) return refuse(cuda::why_too_old(device));
    return select_config(*cuda::packed_problem(request.problem), device.shared_bytes);
  };
  return cuda::plan_on_device<State>(request, select);
}
Decision plan_plain(const Request& request) {
  const auto select = [](const cuda::DeviceFacts& device, const Problem& p) -> Selected<JvpFeatures> {
    if (device.major < 8) return refuse(cuda::why_too_old(device));
    if (p.batch * p.heads_q > cuda::kMaxPosition)
      return refuse("batch x heads_q must be at most ", cuda::kMaxPosition, " (got ", p.batch * p.heads_q, ")");
    if (std::string sentence = cuda::why_elsewhere(p, cuda::tile_bound(p, kPlainTile)); !sentence.empty())
      return refuse(sentence);
    JvpFeatures features = features_of(p);
    features.forward.attention.tf32 = false;  // no tensor cores
    return features;
  };
  return cuda::plan_on_device<PlainState>(request, select);
}

}  // namespace

JvpParams decided_jvp(const Problem& p, const cuda::TileShape& tile, int l2_bytes) {
  JvpParams f{};
  static_cast<ForwardParams&>(f) = cuda::decided_params(p, tile, l2_bytes);
  cuda::fill_strides(f.tq_stride, p.layout.tq);
  cuda::fill_strides(f.tk_stride, p.layout.tk);
  cuda::fill_strides(f.tv_stride, p.layout.tv);
  cuda::fill_strides(f.tout_stride, p.layout.tout);
  cuda::fill_strides(f.tlse_stride, p.layout.tlse);
  std::copy(p.layout.tbias.begin(), p.layout.tbias.end(), f.tbias_stride);
  f.tsink_stride = p.layout.tsinks[0];
  return f;
}

void bind_jvp(JvpParams& f, const Tensors& t, void* workspace) {
  cuda::bind(f, t, workspace);
  f.tq = t.tq.data;
  f.tk = t.tk.data;
  f.tv = t.tv.data;
  f.tbias = t.tbias.data;
  f.tsinks = static_cast<const float*>(t.tsinks.data);
  f.tout = t.tout.data;
  f.tlse = static_cast<float*>(t.tlse.data);
}

constinit const Implementation kImplementation{"cuda.jvp", plan, kJvp};
constinit const Implementation kPlainImplementation{"cuda.jvp_plain", plan_plain, kJvp};

}  // namespace onepass::cuda::jvp
