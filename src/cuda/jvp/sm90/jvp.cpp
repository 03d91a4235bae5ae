#include "cuda/jvp/sm90/jvp.hpp"

#include <algorithm>
#include <tuple>

#include "base/text.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/host/kernel_state.hpp"
#include "cuda/jvp/launch.hpp"
#include "cuda/sm90/host.hpp"

namespace onepass::cuda::jvp::sm90 {
namespace {

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const Config& config)
      : KernelState(request, device),
        seen_(packed_problem(problem)),
        config_(config),
        shapes_(map_shapes(*seen_, config)),
        launch_(kernels_, *seen_, device, tile_shape_of(config), problem) {
    const JvpFeatures features = features_of(*seen_);
    workspace_bytes = launch_.workspace_bytes;
    idle_ = launch_.decided.tiles == 0;
    kernel_ = kernels_.add(std::tuple{features, config, mods_key(*seen_)}, layout_of(features, config).total,
                           [p = seen_](const auto& values, const std::string&) {
                             const auto& [f, c, mods] = values;
                             return program_of(f, c, mods_source(*p, 1));
                           });
  }

  std::string describe() const override {
    const Config& c = config_;
    return text(c.block_m(), " x ", c.block_n, " tiles, ", c.groups, " consumer warpgroups, ",
                c.v_groups > 1 ? "O by halves, " : "", c.stages, c.stages == 1 ? " K/V stage, " : " K/V stages, ",
                kernel_->shared_bytes, " bytes of shared memory", packing_of(*problem, *seen_));
  }

 private:
  void launch(const Call& call) const override {
    Maps maps = maps_of(shapes_, call.tensors, tensor_map);
    JvpParams params = launch_.params(call);
    call.launch(*kernel_, {std::min(params.tiles, device_.multiprocessors), config_.threads()}, maps, params);
  }

  const std::shared_ptr<const Problem> seen_;  // by the kernel
  const Config config_;
  const MapShapes shapes_;
  const Launch launch_;
  const PlannedKernel* kernel_;
};

Decision plan(const Request& request) {
  const auto select = [&](const DeviceFacts& device, const Problem&) -> Selected<Config> {
    if (device.major != 9) return refuse(onepass::sm90::why_no_hopper(device));
    return select_config(*packed_problem(request.problem));
  };
  return plan_on_device<State>(request, select);
}

}  // namespace

MapShapes map_shapes(const Problem& p, const Config& c) {
  using onepass::sm90::MapRows;
  const MapRows queries = p.varlen ? MapRows{1, p.total_q} : MapRows{p.batch, p.seq_q},
                keys = onepass::sm90::rows_of_keys(p);
  const auto shape = [&](const Dims& s, std::int64_t heads, const MapRows& of, std::int64_t dim, int rows) {
    return TensorMapShape(p.dtype, {dim, of.tokens, heads, of.batch}, {s[2], s[1], s[0]}, rows);
  };
  MapShapes m{};
  m.keys = keys.any();
  m.stores = p.out_dtype != DType::f32;
  m.q = shape(p.layout.q, p.heads_q, queries, p.dim_qk, c.block_m());
  m.tq = shape(p.layout.tq, p.heads_q, queries, p.dim_qk, c.block_m());
  m.k = shape(p.layout.k, p.heads_kv, keys, p.dim_qk, c.block_n);
  m.tk = shape(p.layout.tk, p.heads_kv, keys, p.dim_qk, c.block_n);
  m.v = shape(p.layout.v, p.heads_kv, keys, p.dim_v, c.block_n);
  m.tv = shape(p.layout.tv, p.heads_kv, keys, p.dim_v, c.block_n);
  m.out = shape(p.layout.out, p.heads_q, queries, p.dim_v, 16);
  m.tout = shape(p.layout.tout, p.heads_q, queries, p.dim_v, 16);
  return m;
}

Maps maps_of(const MapShapes& m, const Tensors& t, MapTensor map_tensor) {
  Maps maps{};
  maps.q = map_tensor(t.q.data, m.q);
  maps.tq = map_tensor(t.tq.data, m.tq);
  const auto of_keys = [&](const void* data, const TensorMapShape& shape) {
    return m.keys ? map_tensor(data, shape) : maps.q;
  };
  maps.k = of_keys(t.k.data, m.k);
  maps.tk = of_keys(t.tk.data, m.tk);
  maps.v = of_keys(t.v.data, m.v);
  maps.tv = of_keys(t.tv.data, m.tv);
  maps.out = m.stores ? map_tensor(t.out.data, m.out) : maps.q;
  maps.tout = m.stores ? map_tensor(t.tout.data, m.tout) : maps.q;
  return maps;
}

constinit const Implementation kImplementation{"cuda.sm90_jvp", plan, kJvp};

}  // namespace onepass::cuda::jvp::sm90
