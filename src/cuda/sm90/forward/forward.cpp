#include "cuda/sm90/forward/forward.hpp"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/compile/wgmma_source.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/host/kernels.hpp"
#include "cuda/sm90/fp8/config.hpp"
#include "cuda/sm90/host.hpp"

namespace onepass::sm90 {
namespace {

// A tensor from a column on.
ConstTensor columns_of(ConstTensor t, std::int64_t first) {
  t.data = static_cast<const std::byte*>(t.data) + first * static_cast<std::int64_t>(size_of(t.dtype));
  return t;
}

cuda::TileShape tile_shape_of(const ForwardConfig& c) { return {64 * c.groups, c.block_n, 4 * c.groups}; }

class State final : public cuda::ForwardState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const ForwardConfig& config, const cuda::Part& part)
      : ForwardState(request, device, sm90::features_of(*request.problem, config), tile_shape_of(config), part),
        config_(config),
        layout_(layout_of(features_, config)) {}

  std::string describe() const override {
    const ForwardConfig& c = config_;
    return text(64 * c.groups, " x ", c.block_n, " tiles, ", c.groups, " consumer warpgroups, ", c.stages,
                " K/V stages, ", c.q_stages, " Q stages", c.cross_tile ? ", cross-tile" : "",
                c.ping_pong ? ", ping-pong" : "", c.q_registers ? ", Q in registers" : "",
                c.bias_stages ? ", bias by TMA" : "",
                !c.raw_stages                     ? ""
                : problem->dtype == DType::f8e4m3 ? text(", V transposed by 3 warps, ", accumulation_of(c))
                                                  : ", K and V converted by 3 warps",
                ", ", layout_.total, " bytes of shared memory");
  }

 private:
  const cuda::Kernel& load(cuda::Stream stream) const override {
    static cuda::KernelTable<std::tuple<ForwardFeatures, ForwardConfig, std::string>> kernels;
    return kernels.find(device_.ordinal, {features_, config_, cuda::mods_key(*problem)}, layout_.total, stream,
                        [&] { return program_of(features_, config_, cuda::mods_source(*problem)); });
  }
  void launch_with(const cuda::Kernel& kernel, const Tensors& tensors, ForwardParams& params,
                   cuda::Stream stream) const override {
    for (int part = 0; part < config_.v_parts; ++part) {
      TensorMaps maps = maps_of(*problem, tensors, config_, cuda::tensor_map, part);
      params.v = columns_of(tensors.v, part * features_.attention.dim_v).data;
      if (params.v_mean)
        params.v_mean = static_cast<const float*>(tensors.v_mean.data) + part * features_.attention.dim_v;
      params.out = const_cast<void*>(columns_of(tensors.out, part * features_.attention.dim_v).data);
      void* arguments[] = {&maps.q, &maps.k, &maps.v, &maps.out, &maps.bias, &params};
      cuda::launch(kernel, static_cast<unsigned>(std::min(params.tiles, device_.multiprocessors)),
                   static_cast<unsigned>(128 * (config_.groups + 1)), layout_.total, stream, arguments,
                   part_.early && part == 0);
    }
  }

  const ForwardConfig config_;
  const ForwardLayout layout_;
};

}  // namespace

Decision plan_forward(const Request& request, const cuda::Part& part) {
  return cuda::plan_forward<State, ForwardConfig>(request, config_on, part);
}

ForwardFeatures features_of(const Problem& p, const ForwardConfig& c) {
  ForwardFeatures f = cuda::features_of(p);
  f.attention.dim_v /= c.v_parts;
  return f;
}

TensorMaps maps_of(const Problem& p, const Tensors& a, const ForwardConfig& c, MapTensor map_tensor, int part) {
  const std::int64_t dim_v = p.dim_v / c.v_parts, first = part * dim_v;
  // As the kernels see them: tokens of a batch entry, of all packed sequences, of a page.
  struct Rows {
    std::int64_t batch, tokens;
  };
  const Rows queries = p.varlen ? Rows{1, p.total_q} : Rows{p.batch, p.seq_q};
  const Rows keys = p.paged() ? Rows{p.pages, p.page_size} : p.packed_k() ? Rows{1, p.total_k} : Rows{p.batch, p.seq_k};
  const auto map = [&](const ConstTensor& t, const Dims& stride, std::int64_t heads, const Rows& of, std::int64_t dim,
                       int rows) {
    return map_tensor(t.data, t.dtype, {dim, of.tokens, heads, of.batch}, {stride[2], stride[1], stride[0]}, rows);
  };
  TensorMaps maps{};
  maps.q = map(a.q, p.layout.q, p.heads_q, queries, p.dim_qk, 64 * c.groups);
  const bool any = keys.tokens > 0 && keys.batch > 0;
  maps.k = map(any ? a.k : a.q, p.layout.k, p.heads_kv, keys, p.dim_qk, c.key_rows());
  maps.v = map(any ? columns_of(a.v, first) : a.q, p.layout.v, p.heads_kv, keys, dim_v, c.key_rows());
  maps.out =
      p.out_dtype == DType::f32 ? maps.q : map(columns_of(a.out, first), p.layout.out, p.heads_q, queries, dim_v, 16);
  maps.bias = maps.q;
  if (c.bias_stages > 0) {
    const Dims& s = p.layout.bias;
    maps.bias = map_tensor(a.bias.data, a.bias.dtype, {p.seq_k, p.seq_q, p.heads_q, p.batch}, {s[2], s[1], s[0]}, 64);
  }
  return maps;
}

cuda::KernelProgram program_of(const ForwardFeatures& f, const ForwardConfig& c, const std::string& mods) {
  return {"cuda/sm90/forward/forward.cuh",
          "attention_forward",
          text(cuda::features_source(f),
               cuda::config_line("cuda/sm90/forward/config.hpp", "onepass::sm90", "ForwardConfig config", c)),
          "sm_90a",
          mods,
          cuda::wgmma_source({c.block_n, padded(f.attention.dim_v, 16)}, operand_of(f.attention.input))};
}

const Implementation& forward_implementation() {
  static const Implementation row{"cuda.sm90", [](const Request& r) { return plan_forward(r, {}); }};
  return row;
}

}  // namespace onepass::sm90
