#include "cuda/sm90/forward/forward.hpp"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "base/text.hpp"
#include "cuda/attention/forward_launch.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/compile/wgmma_source.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/sm90/fp8/config.hpp"
#include "cuda/sm90/host.hpp"

namespace onepass::sm90 {
namespace {

// The address of a tensor's column.
const void* column_of(const ConstTensor& t, std::int64_t column) {
  return static_cast<const std::byte*>(t.data) + column * static_cast<std::int64_t>(size_of(t.dtype));
}

cuda::TileShape tile_shape_of(const ForwardConfig& c) { return {c.block_m(), c.block_n, 4 * c.groups}; }

class State final : public cuda::KernelState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const ForwardConfig& config, const cuda::Part& part)
      : KernelState(request, device),
        seen_(cuda::packed_problem(problem)),
        config_(config),
        early_(part.early && !seen_->bool_mask),  // else the kernel that packs the mask is the one in front
        shapes_(map_shapes(*seen_, config)),
        forward_(kernels_, *seen_, device, tile_shape_of(config), problem, part) {
    const ForwardFeatures features = sm90::features_of(*seen_, config);
    workspace_bytes = forward_.workspace_bytes;
    idle_ = forward_.decided.tiles == 0;
    kernel_ = kernels_.add(std::tuple{features, config, cuda::mods_key(*seen_)}, layout_of(features, config).total,
                           [p = seen_](const auto& values, const std::string&) {
                             const auto& [f, c, mods] = values;
                             return program_of(f, c, cuda::mods_source(*p));
                           });
  }

  std::string describe() const override {
    const ForwardConfig& c = config_;
    return text(c.block_m(), " x ", c.block_n, " tiles, ", c.groups, " consumer warpgroups, ",
                c.v_groups > 1 ? "O by halves, " : "", c.stages, " K/V stages, ", c.q_stages,
                c.q_stages == 1 ? " Q stage" : " Q stages", c.cross_tile ? ", cross-tile" : "",
                c.ping_pong ? ", ping-pong" : "", c.q_registers ? ", Q in registers" : "",
                c.bias_stages ? ", bias by TMA" : "",
                !c.incoming_stages                ? ""
                : problem->dtype == DType::f8e4m3 ? text(", V transposed by 3 warps, ", accumulation_of(c))
                                                  : ", K and V converted by 3 warps",
                ", ", kernel_->shared_bytes, " bytes of shared memory", cuda::packing_of(*problem, *seen_));
  }

 private:
  void launch(const cuda::Call& call) const override {
    const Tensors& t = call.tensors;
    EntropyParams params = forward_.params(call);
    for (int part = 0; part < config_.v_parts; ++part) {
      TensorMaps maps = maps_of(shapes_, t, cuda::tensor_map, part);
      const std::int64_t column = part * shapes_.dim_v;
      params.v = column_of(t.v, column);
      if (params.v_mean) params.v_mean = static_cast<const float*>(t.v_mean.data) + column;
      params.out = const_cast<void*>(column_of(t.out, column));
      call.launch(*kernel_,
                  {std::min(params.tiles, device_.multiprocessors), 128 * (config_.groups + 1), early_ && part == 0},
                  maps.q, maps.k, maps.v, maps.out, maps.bias, params);
    }
  }

  const std::shared_ptr<const Problem> seen_;  // by the kernel
  const ForwardConfig config_;
  const bool early_;
  const MapShapes shapes_;
  const cuda::ForwardLaunch forward_;
  const cuda::PlannedKernel* kernel_;
};

}  // namespace

Decision plan_forward(const Request& request, const cuda::Part& part) {
  const auto select = [&](const cuda::DeviceFacts& device, const Problem&) {
    return config_on(device, *cuda::packed_problem(request.problem));
  };
  return cuda::plan_on_device<State>(request, select, part);
}

ForwardFeatures features_of(const Problem& p, const ForwardConfig& c) {
  ForwardFeatures f = cuda::features_of(p);
  f.attention.dim_v /= c.v_parts;
  return f;
}

MapShapes map_shapes(const Problem& p, const ForwardConfig& c) {
  const MapRows queries = p.varlen ? MapRows{1, p.total_q} : MapRows{p.batch, p.seq_q}, keys = rows_of_keys(p);
  const auto shape = [](DType dtype, const Dims& s, std::int64_t heads, const MapRows& of, std::int64_t dim, int rows) {
    return cuda::TensorMapShape(dtype, {dim, of.tokens, heads, of.batch}, {s[2], s[1], s[0]}, rows);
  };
  MapShapes m{};
  m.dim_v = p.dim_v / c.v_parts;
  m.keys = keys.any();
  m.stores = p.out_dtype != DType::f32;
  m.reads_bias = c.bias_stages > 0;
  const DType dtype = m.keys ? p.key_dtype() : p.dtype;
  m.q = shape(p.dtype, p.layout.q, p.heads_q, queries, p.dim_qk, c.block_m());
  m.k = shape(dtype, p.layout.k, p.heads_kv, keys, p.dim_qk, c.key_rows());
  m.v = shape(dtype, p.layout.v, p.heads_kv, keys, m.dim_v, c.key_rows());
  if (m.stores) m.out = shape(p.out_dtype, p.layout.out, p.heads_q, queries, m.dim_v, 16);
  if (m.reads_bias) m.bias = shape(p.bias->dtype, p.layout.bias, p.heads_q, {p.batch, p.seq_q}, p.seq_k, 64);
  return m;
}

TensorMaps maps_of(const MapShapes& m, const Tensors& t, cuda::MapTensor map_tensor, int part) {
  const std::int64_t column = part * m.dim_v;
  TensorMaps maps{};
  maps.q = map_tensor(t.q.data, m.q);
  maps.k = map_tensor(m.keys ? t.k.data : t.q.data, m.k);
  maps.v = map_tensor(m.keys ? column_of(t.v, column) : t.q.data, m.v);
  maps.out = m.stores ? map_tensor(column_of(t.out, column), m.out) : maps.q;
  maps.bias = m.reads_bias ? map_tensor(t.bias.data, m.bias) : maps.q;
  return maps;
}

cuda::KernelProgram program_of(const ForwardFeatures& f, const ForwardConfig& c, const std::string& mods) {
  return {"cuda/sm90/forward/forward.cuh",
          "attention_forward",
          text(cuda::features_source(f),
               cuda::config_line("cuda/sm90/forward/config.hpp", "onepass::sm90", "ForwardConfig config", c)),
          "sm_90a",
          mods,
          cuda::wgmma_source({c.block_n, out_columns(f.attention.dim_v, c)}, operand_of(f.attention.input))};
}

constinit const Implementation kForwardImplementation{"cuda.sm90",
                                                      [](const Request& r) { return plan_forward(r, {}); }};

}  // namespace onepass::sm90
