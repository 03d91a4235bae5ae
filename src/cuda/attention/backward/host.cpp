#include "cuda/attention/backward/host.hpp"

#include <algorithm>
#include <atomic>
#include <tuple>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/host/config_source.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {
namespace {

constexpr int kRowThreads = 256;  // of the pre and the post kernel

// The numbers are spread over 64 bits: what else a workspace holds is none of them.
unsigned long long next_call() {
  static std::atomic<unsigned long long> calls{0};
  return (calls.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9e3779b97f4a7c15ull;
}

int turn_tiles(const Problem& p, const BackwardShape& s) {
  return s.turn_keys == 0 ? 0 : static_cast<int>(ceil_div(p.seq_k, s.turn_keys));
}

}  // namespace

BackwardFeatures backward_features_of(const Problem& p) {
  const Gradients& g = p.gradients;
  return {.forward = features_of(p),
          .gradients = scalar_type_of(p.grad_dtype),
          .dlse = p.dlse,
          .dentropy = p.dentropy,
          .dq = g.dq,
          .dk = g.dk,
          .dv = g.dv,
          .dbias = g.dbias,
          .dsinks = g.dsinks,
          .dslopes = g.dalibi_slopes,
          .deterministic = p.deterministic && g.dq};
}

std::string backward_source(const BackwardFeatures& f, const BackwardShape& s) {
  constexpr const char* kHeader = "cuda/attention/backward/backward.hpp";
  return text(config_line(kHeader, "onepass", "BackwardFeatures backward_features", f),
              config_line(kHeader, "onepass", "BackwardShape backward_shape", s), "namespace onepass {\n",
              "constexpr ForwardFeatures forward_features = backward_features.forward;\n",
              "constexpr AttentionFeatures features = forward_features.attention;\n}\n");
}

BackwardPrograms backward_programs(const BackwardFeatures& f, const BackwardShape& s, const std::string& sum_tile,
                                   const std::string& arch, const std::string& mods) {
  const std::string config = backward_source(f, s);
  return {{"cuda/attention/backward/pre.cuh", "attention_backward_pre", config, arch, mods},
          {"cuda/attention/backward/post.cuh", "attention_backward_post", text(config, "#include \"", sum_tile, "\"\n"),
           arch, mods},
          {"cuda/attention/backward/sums.cuh", "attention_backward_sums", config, arch}};
}

int pre_shared_bytes() { return 4 * kRowThreads; }

BackwardWorkspace workspace_of(const Problem& p, const BackwardFeatures& f, const BackwardShape& s) {
  const auto heads = static_cast<std::size_t>(p.heads_q);
  const auto q_blocks = static_cast<std::size_t>(padded_blocks(p.varlen, p.batch, p.seq_q, p.total_q, s.block_q));
  const auto k_blocks = static_cast<std::size_t>(padded_blocks(p.varlen, p.batch, p.seq_k, p.total_k, s.block_k));
  BackwardWorkspace w{};
  const auto place = [&](std::size_t& at, std::size_t bytes) {
    at = round_up(w.total, 128);
    w.total = at + bytes;
  };
  const auto rows = static_cast<std::size_t>(s.block_q);
  w.total = kTileCounterBytes;
  place(w.statistics, heads * q_blocks * rows * 4 * static_cast<std::size_t>(f.statistics()));
  place(w.dq_sums, f.dq ? heads * q_blocks * rows * static_cast<std::size_t>(s.sum_columns) * 4 : 0);
  place(w.sink_parts, f.dsinks ? heads * q_blocks * 4 : 0);
  place(w.slope_parts, f.dslopes ? heads * k_blocks * static_cast<std::size_t>(s.key_warps) * 4 : 0);
  place(w.marks, static_cast<std::size_t>(s.mark_blocks) * kMarkWords * kMarkLanes * 4);
  place(w.order, f.deterministic ? heads * q_blocks * 4 : 0);
  place(w.turns, heads * q_blocks * static_cast<std::size_t>(turn_tiles(p, s)) * 4);
  place(w.zeros, s.zero_sums ? 0 : kZeroWords * 4);
  const auto sixteens = static_cast<std::size_t>(p.heads_kv) * k_blocks * static_cast<std::size_t>(s.block_k / 16);
  place(w.broken_keys, (1 + sixteens) * 4);
  place(w.mask, mask_bytes(p, kMaskTile, s.mask_fragments));
  return w;
}

BackwardParams decided_backward(const Problem& p, const BackwardShape& s, int l2_bytes) {
  BackwardParams b{};
  static_cast<ForwardParams&>(b) = decided_params(p, {s.block_q, s.block_k, 1}, l2_bytes);
  b.q_blocks = static_cast<int>(padded_blocks(p.varlen, p.batch, p.seq_q, p.total_q, s.block_q));
  b.k_blocks = static_cast<int>(padded_blocks(p.varlen, p.batch, p.seq_k, p.total_k, s.block_k));
  while (std::int64_t{b.heads} * b.q_blocks > 32ll << b.zero_shift) ++b.zero_shift;
  b.turn_tiles = turn_tiles(p, s);
  fill_strides(b.dout_stride, p.layout.dout);
  fill_strides(b.dlse_stride, p.layout.dlse);
  fill_strides(b.entropy_stride, p.layout.entropy);
  fill_strides(b.dentropy_stride, p.layout.dentropy);
  fill_strides(b.dq_stride, p.layout.dq);
  fill_strides(b.dk_stride, p.layout.dk);
  fill_strides(b.dv_stride, p.layout.dv);
  std::copy(p.layout.dbias.begin(), p.layout.dbias.end(), b.dbias_stride);
  const RoleShape bias = shape_of(p, row_of(Role::bias));
  for (int i = 0; i < 4; ++i) b.bias_size[i] = static_cast<int>(bias.size[i]);
  std::copy_n(p.layout.dalibi_slopes.begin(), 2, b.dslope_stride);
  b.dsink_stride = p.layout.dsinks[0];
  b.heads_kv = static_cast<int>(p.heads_kv);
  if (p.heads_q == 0) b.seq_q = 0;  // no row sees a key (KeysOuter)
  b.slope_batch = p.layout.dalibi_slopes[0] != 0 ? static_cast<int>(p.batch) : 1;
  return b;
}

void bind_backward(BackwardParams& b, const Tensors& t, void* workspace, const BackwardWorkspace& places) {
  bind(b, t, workspace);
  const auto at = [&](std::size_t place) { return static_cast<std::byte*>(workspace) + place; };
  b.dout = t.dout.data;
  b.dlse = static_cast<const float*>(t.dlse.data);
  b.entropy = static_cast<const float*>(t.entropy.data);
  b.dentropy = static_cast<const float*>(t.dentropy.data);
  b.dq = t.dq.data;
  b.dk = t.dk.data;
  b.dv = t.dv.data;
  b.dbias = static_cast<float*>(t.dbias.data);
  b.dsinks = static_cast<float*>(t.dsinks.data);
  b.dslopes = static_cast<float*>(t.dalibi_slopes.data);
  b.statistics = reinterpret_cast<float*>(at(places.statistics));
  b.dq_sums = reinterpret_cast<float*>(at(places.dq_sums));
  b.sink_parts = reinterpret_cast<float*>(at(places.sink_parts));
  b.slope_parts = reinterpret_cast<float*>(at(places.slope_parts));
  b.marks = reinterpret_cast<unsigned*>(at(places.marks));
  b.notes = reinterpret_cast<CallNotes*>(static_cast<unsigned*>(workspace) + kCallWords);
  b.call = next_call();
  b.order = reinterpret_cast<unsigned*>(at(places.order));
  b.turns = reinterpret_cast<unsigned*>(at(places.turns));
  b.zeros = reinterpret_cast<unsigned*>(at(places.zeros));
  b.broken_keys = reinterpret_cast<unsigned*>(at(places.broken_keys));
}

std::int64_t row_blocks(const BackwardParams& b) { return std::int64_t{b.heads} * b.q_blocks; }
std::int64_t post_blocks(const BackwardParams& b, const BackwardShape& s) {
  constexpr int kRows = kRowThreads / 32 * 16;  // sixteen of a warp
  return ceil_div(row_blocks(b) * s.block_q, kRows);
}
// A call of few keys has one CTA for three marks of sixteen keys. Each CTA reads all marks, so more of them cost a call
// of 34 us 1.4 % even if its inputs are finite (docs/notes/nonfinite.md).
constexpr int kKeysOfARepair = 3 * 16;
unsigned sum_blocks(const BackwardParams& b) { return static_cast<unsigned>(b.heads * b.slope_batch); }

BackwardLaunch::BackwardLaunch(Kernels& kernels, const std::shared_ptr<const Problem>& problem,
                               const std::shared_ptr<const Problem>& callers, const DeviceFacts& device,
                               const BackwardFeatures& f, const BackwardShape& s, const char* sum_tile)
    : features(f),
      shape(s),
      decided(decided_backward(*problem, s, device.l2_bytes)),
      rows(row_blocks(decided)),
      key_tiles(problem->heads_kv * decided.k_blocks),
      early(device.major >= 9),
      places_(workspace_of(*problem, f, s)),
      repair_blocks_(f.dk || f.dv
                         ? std::min<std::int64_t>(2 * device.multiprocessors, key_tiles * s.block_k / kKeysOfARepair)
                         : 0),
      mask_(kernels, *problem, kMaskTile, callers, s.mask_fragments) {
  const auto add = [&](KernelProgram BackwardPrograms::* which, const char* name, int shared_bytes) {
    return kernels.add(std::tuple{std::string(name), f, s, mods_key(*problem)}, shared_bytes,
                       [=](const auto&, const std::string& arch) {
                         return backward_programs(f, s, sum_tile, arch, mods_source(*problem, 1)).*which;
                       });
  };
  pre_ = add(&BackwardPrograms::pre, "pre", pre_shared_bytes());
  if (f.dq || f.dk || f.dv) post_ = add(&BackwardPrograms::post, "post", kRepairBytes);
  if (f.dsinks || f.dslopes) sums_ = add(&BackwardPrograms::sums, "sums", 0);
}

const char* BackwardLaunch::order() const {
  return features.deterministic ? ", dQ summed in a fixed order" : features.dq ? ", dQ summed in any order" : "";
}

BackwardParams BackwardLaunch::begin(const Call& call) const {
  BackwardParams params = decided;
  bind_backward(params, call.tensors, call.workspace, places_);
  mask_.pack(call, static_cast<std::byte*>(call.workspace) + places_.mask, params.mask, &params.mask_fragments);
  params.counters = tile_counters(call);
  call.launch(*pre_, {rows, kRowThreads}, params);
  return params;
}

void BackwardLaunch::finish(const Call& call, BackwardParams& params) const {
  if (post_) call.launch(*post_, {std::max(post_blocks(params, shape), repair_blocks_), kRowThreads, early}, params);
  if (sums_) call.launch(*sums_, {sum_blocks(params), 32}, params);
}

}  // namespace onepass::cuda
