#include "cuda/backward_jvp/sm90/backward_jvp.hpp"

#include "base/text.hpp"
#include "cuda/backward_jvp/state.hpp"
#include "cuda/sm90/host.hpp"

namespace onepass::cuda::backward_jvp::sm90 {
namespace {

struct Tiles {
  Tiles(const Problem& p, const Plan& of)
      : plan(of), shapes{map_shapes(false, p, of.config), map_shapes(true, p, of.config)} {}

  std::string describe() const {
    const Config& c = plan.config;
    return text(c.held(), " rows or keys x ", c.by_rows, " keys or ", c.by_keys, " rows, ", Config::kGroups,
                " consumer warpgroups, ", c.row_stages.left, "/", c.row_stages.right, " and ", c.key_stages.left, "/",
                c.key_stages.right, " stages");
  }
  void launch(const Call& call, bool keys, const PlannedKernel& kernel, const Grid& grid,
              PlainBackwardParams& params) const {
    Maps maps = maps_of(shapes[keys], call.tensors, tensor_map);
    call.launch(kernel, grid, maps, params);
  }

  const Plan plan;
  const MapShapes shapes[2];
};

Decision plan(const Request& request) {
  return plan_on_device<State<Tiles>>(request, [&](const DeviceFacts& device, const Problem&) -> Selected<Plan> {
    if (device.major != 9) return refuse(onepass::sm90::why_no_hopper(device));
    return select_plan(*packed_problem(request.problem));
  });
}

}  // namespace

MapShapes map_shapes(bool keys, const Problem& p, const Config& c) {
  const std::int64_t batch = p.varlen ? 1 : p.batch, tokens_q = p.varlen ? p.total_q : p.seq_q,
                     tokens_k = p.varlen ? p.total_k : p.seq_k;
  const auto of_queries = [&](const Dims& s, std::int64_t dim) {
    return TensorMapShape(p.dtype, {dim, tokens_q, p.heads_q, batch}, {s[2], s[1], s[0]}, keys ? c.by_keys : c.held());
  };
  const auto of_keys = [&](const Dims& s, std::int64_t dim) {
    return TensorMapShape(p.dtype, {dim, tokens_k, p.heads_kv, batch}, {s[2], s[1], s[0]}, keys ? c.held() : c.by_rows);
  };
  MapShapes m{};
  m.queries = tokens_q > 0 && p.heads_q > 0, m.keys = tokens_k > 0, m.tangent_of_dout = p.tdout;
  m.q = of_queries(p.layout.q, p.dim_qk);
  m.tq = of_queries(p.layout.tq, p.dim_qk);
  m.k = of_keys(p.layout.k, p.dim_qk);
  m.tk = of_keys(p.layout.tk, p.dim_qk);
  m.v = of_keys(p.layout.v, p.dim_v);
  m.tv = of_keys(p.layout.tv, p.dim_v);
  m.dout = of_queries(p.layout.dout, p.dim_v);
  m.tdout = of_queries(p.layout.tdout, p.dim_v);
  return m;
}

Maps maps_of(const MapShapes& m, const Tensors& t, MapTensor map_tensor) {
  Maps maps{};
  if (m.queries) {
    maps.q = map_tensor(t.q.data, m.q);
    maps.tq = map_tensor(t.tq.data, m.tq);
    maps.dout = map_tensor(t.dout.data, m.dout);
    maps.tdout = m.tangent_of_dout ? map_tensor(t.tdout.data, m.tdout) : maps.dout;
  }
  if (m.keys) {
    maps.k = map_tensor(t.k.data, m.k);
    maps.tk = map_tensor(t.tk.data, m.tk);
    maps.v = map_tensor(t.v.data, m.v);
    maps.tv = map_tensor(t.tv.data, m.tv);
  }
  if (!m.queries) maps.q = maps.tq = maps.dout = maps.tdout = maps.k;
  if (!m.keys) maps.k = maps.tk = maps.v = maps.tv = maps.q;
  return maps;
}

constinit const Implementation kImplementation{"cuda.sm90_backward_jvp", plan, kBackwardJvp};

}  // namespace onepass::cuda::backward_jvp::sm90
