#include "cuda/backward_plain/backward_plain.hpp"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/backward/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/host/config_source.hpp"

namespace onepass::cuda::backward_plain {
namespace {

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const Plan& plan)
      : KernelState(request, device),
        seen_(packed_problem(problem)),
        plan_(plan),
        places_(places_of(*seen_, plan)),
        decided_(decided_params(*seen_, plan, device.l2_bytes)),
        mask_(kernels_, *seen_, mask_tile_of(plan.shape), problem) {
    for (const Part part : kParts) {
      if (blocks_of(part, decided_, plan_) == 0) continue;
      parts_.emplace_back(part, kernels_.add(std::tuple{part, plan.features, plan.shape, mods_key(*seen_)},
                                             shared_bytes_of(part, plan.shape),
                                             [p = seen_](const auto& values, const std::string& arch) {
                                               const auto& [which, features, shape, mods] = values;
                                               const Plan of{features, shape};
                                               return program_of(which, of, arch, mods_source(*p, derivatives_of(of)));
                                             }));
    }
    idle_ = parts_.empty();
    workspace_bytes = idle_ ? 0 : places_.total;
  }

  std::string describe() const override {
    return text(plan_.shape.block_q, " x ", plan_.shape.block_k, " tiles, ", kPlainThreads,
                " threads, scalar products in fp32, ", plan_.shape.row_bytes, "-byte rows, deterministic",
                packing_of(*problem, *seen_));
  }

 private:
  void launch(const Call& call) const override {
    PlainBackwardParams params = decided_;
    bind(params, plan_.features.tangents ? with_derivatives_as_gradients(call.tensors) : call.tensors, call.workspace,
         places_);
    mask_.pack(call, static_cast<std::byte*>(call.workspace) + places_.mask, params.mask);
    for (const auto& [part, kernel] : parts_)
      call.launch(*kernel, {blocks_of(part, params, plan_), threads_of(part)}, params);
  }

  const std::shared_ptr<const Problem> seen_;  // by the kernels
  const Plan plan_;
  const Places places_;
  const PlainBackwardParams decided_;
  const PackedMask mask_;
  std::vector<std::pair<Part, const PlannedKernel*>> parts_;
};

Decision plan(const Request& request) {
  return plan_on_device<State>(request, [&](const DeviceFacts& device, const Problem&) -> Selected<Plan> {
    if (device.major < 8) return refuse(why_too_old(device));
    return select_plan(*packed_problem(request.problem));
  });
}

std::int64_t blocks_of_rows(const Problem& p, int block) {
  return p.heads_q * padded_blocks(p.varlen, p.batch, p.seq_q, p.total_q, block);
}
std::int64_t blocks_of_keys(const Problem& p, int block) {
  return p.heads_kv * padded_blocks(p.varlen, p.batch, p.seq_k, p.total_k, block);
}
std::int64_t bias_tiles(const int (&size)[4], int block) {
  return std::int64_t{size[0]} * size[1] * ceil_div(size[2], block) * ceil_div(size[3], block);
}

}  // namespace

Selected<Plan> select_plan(const Problem& p) {
  const std::int64_t most = kMaxPosition;
  Plan plan{.features = {.backward = backward_features_of(p),
                         .tangents = p.op->tangents,
                         .tdout = p.tdout,
                         .tdlse = p.tdlse,
                         .tbias = p.tbias,
                         .tsinks = p.tsinks,
                         .mark_parts = 0},
            .shape = {}};
  plan.features.backward.deterministic = false;  // always: no kernel needs to know
  // Sums of 64 rows or keys with up to 256 columns of both gradients fit a thread's registers.
  const std::int64_t sums = ceil_div(p.dim_qk, kPlainColumns) + ceil_div(p.dim_v, kPlainColumns);
  const int block = sums <= 4 ? 64 : 32;
  plan.shape.block_q = plan.shape.block_k = block;
  plan.shape.key_warps = 1;
  plan.shape.row_bytes = 16;
  for (const Role role : {Role::q, Role::k, Role::v, Role::dout, Role::tq, Role::tk, Role::tv, Role::tdout})
    plan.shape.row_bytes = std::min(plan.shape.row_bytes, row_alignment(p, role));
  const std::int64_t blocks = std::max(blocks_of_rows(p, block), blocks_of_keys(p, block));
  if (std::string sentence = why_too_many(p, blocks); !sentence.empty()) return refuse(sentence);
  if (p.dim_qk > 576 || p.dim_v > 512)
    return refuse("head dims must be at most 576/512 (got ", p.dim_qk, "/", p.dim_v, ")");
  if (const auto tiles = bias_tiles(decided_params(p, plan, 1).bias_size, block); p.gradients.dbias && tiles > most)
    return refuse("the bias must have at most ", most, " tiles of ", block, " x ", block, " (got ", tiles, ")");
  return plan;
}

KernelProgram program_of(Part part, const Plan& plan, const std::string& arch, const std::string& mods) {
  constexpr const char *kFiles[] = {"cuda/backward_plain/stats.cuh", "cuda/backward_plain/rows.cuh",
                                    "cuda/backward_plain/keys.cuh", "cuda/backward_plain/bias.cuh",
                                    "cuda/attention/backward/sums.cuh"},
                       *kNames[] = {"attention_backward_plain_stats", "attention_backward_plain_rows",
                                    "attention_backward_plain_keys", "attention_backward_plain_bias",
                                    "attention_backward_sums"};
  const auto at = static_cast<std::size_t>(part);
  return {
      kFiles[at], kNames[at],
      text(config_line("cuda/backward_plain/config.hpp", "onepass", "PlainBackwardFeatures plain_features",
                       plan.features),
           config_line("cuda/attention/backward/backward.hpp", "onepass", "BackwardShape backward_shape", plan.shape),
           "namespace onepass {\nconstexpr BackwardFeatures backward_features = plain_features.backward;\n",
           "constexpr ForwardFeatures forward_features = backward_features.forward;\n",
           "constexpr AttentionFeatures features = forward_features.attention;\n}\n"),
      arch, mods};
}

int derivatives_of(const Plan& plan) { return plan.features.tangents ? 2 : 1; }

std::int64_t blocks_of(Part part, const PlainBackwardParams& p, const Plan& plan) {
  const BackwardFeatures& f = plan.features.backward;
  switch (part) {
    case Part::stats: return row_blocks(p);
    case Part::rows: return f.dq ? row_blocks(p) : 0;
    case Part::keys: return f.dk || f.dv || f.dslopes ? std::int64_t{p.heads_kv} * p.k_blocks : 0;
    case Part::bias: return f.dbias ? bias_tiles(p.bias_size, plan.shape.block_q) : 0;
    case Part::sums: return f.dsinks || f.dslopes ? std::int64_t{sum_blocks(p)} : 0;
  }
  return 0;
}

int threads_of(Part part) { return part == Part::sums ? 32 : kPlainThreads; }

int shared_bytes_of(Part part, const BackwardShape& shape) {
  return part == Part::sums ? 0 : part == Part::stats ? 4 * kPlainThreads / 32 : plain_layout(shape.block_q).total;
}

Places places_of(const Problem& p, const Plan& plan) {
  const int block = plan.shape.block_q;
  const auto rows = static_cast<std::size_t>(blocks_of_rows(p, block));
  const auto keys = static_cast<std::size_t>(blocks_of_keys(p, block)), group = static_cast<std::size_t>(p.group());
  Places w{};
  const auto place = [&](std::size_t& at, std::size_t bytes) {
    at = round_up(w.total, 128);
    w.total = at + bytes;
  };
  const std::size_t numbers = rows * static_cast<std::size_t>(block) * 8;  // two of each row
  place(w.statistics, numbers);
  place(w.moved, numbers);
  place(w.sink_parts, p.gradients.dsinks ? rows * 4 : 0);
  const auto parts = static_cast<std::size_t>(plan.shape.key_warps);
  place(w.slope_parts, p.gradients.dalibi_slopes ? keys * group * parts * 4 : 0);
  const auto marks = static_cast<std::size_t>(block / 16 * plan.features.mark_parts) * 4;
  place(w.row_marks, rows * marks);
  place(w.key_marks, keys * marks);
  place(w.mask, mask_bytes(p, mask_tile_of(plan.shape)));
  return w;
}

PlainBackwardParams decided_params(const Problem& problem, const Plan& plan, int l2_bytes) {
  Problem p = problem;
  if (plan.features.tangents) {
    Layout& l = p.layout;
    l.dq = l.tdq, l.dk = l.tdk, l.dv = l.tdv, l.dbias = l.tdbias, l.dsinks = l.tdsinks;
    l.dalibi_slopes = l.tdalibi_slopes;
  }
  PlainBackwardParams b{};
  static_cast<BackwardParams&>(b) = decided_backward(p, plan.shape, l2_bytes);
  fill_strides(b.tq_stride, p.layout.tq);
  fill_strides(b.tk_stride, p.layout.tk);
  fill_strides(b.tv_stride, p.layout.tv);
  fill_strides(b.tout_stride, p.layout.tout);
  fill_strides(b.tdout_stride, p.layout.tdout);
  fill_strides(b.tlse_stride, p.layout.tlse);
  fill_strides(b.tdlse_stride, p.layout.tdlse);
  std::copy(p.layout.tbias.begin(), p.layout.tbias.end(), b.tbias_stride);
  b.tsink_stride = p.layout.tsinks[0];
  return b;
}

void bind(PlainBackwardParams& b, const Tensors& t, void* workspace, const Places& places) {
  bind_backward(b, t, workspace, {});
  const auto at = [&](std::size_t place) {
    return reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + place);
  };
  b.statistics = at(places.statistics);
  b.moved = at(places.moved);
  b.sink_parts = at(places.sink_parts);
  b.slope_parts = at(places.slope_parts);
  b.row_marks = reinterpret_cast<unsigned*>(at(places.row_marks));
  b.key_marks = reinterpret_cast<unsigned*>(at(places.key_marks));
  b.tq = t.tq.data;
  b.tk = t.tk.data;
  b.tv = t.tv.data;
  b.tout = t.tout.data;
  b.tdout = t.tdout.data;
  b.tlse = static_cast<const float*>(t.tlse.data);
  b.tdlse = static_cast<const float*>(t.tdlse.data);
  b.tbias = t.tbias.data;
  b.tsinks = static_cast<const float*>(t.tsinks.data);
}

constinit const Implementation kFirstImplementation{"cuda.backward_plain", plan, kBackward};
constinit const Implementation kSecondImplementation{"cuda.backward_jvp_plain", plan, kBackwardJvp};

}  // namespace onepass::cuda::backward_plain
