#include "cuda/sm90/backward/backward.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/compile/wgmma_source.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/sm90/host.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/roles.hpp"

namespace onepass::sm90 {
namespace {

// The number of features that keep a value for each row, key or score, in addition to P and dS.
int register_pressure(const BackwardFeatures& b) {
  const AttentionFeatures& f = b.forward.attention;
  const bool helped =
      f.bool_mask && std::max(f.dim_qk, f.dim_v) > 128;  // a helper reads the turns of sums in one order
  return f.packed + f.softcap + f.alibi + f.dropout + f.bool_mask + f.mask_mod + f.score_mod +
         (f.bias != ScalarType::none) + (b.deterministic && !helped);
}
bool bare_scores(const AttentionFeatures& f) { return !f.transforms() && !f.masks() && !f.dropout; }

constexpr std::int64_t kMostBlocks = 256;  // of threads that have marks
constexpr int kMaxPlain = 2;               // of plain scores, joint, at head dims beyond 64; there dH is one, too
// What has no registers: nothing of the sort at head dims to 64.
int most_of(const AttentionFeatures& f, bool split) {
  const int dim = std::max(f.dim_qk, f.dim_v);
  return dim > 128 || !split ? 1 : dim > 64 ? 3 : 5;
}
// TMA writes it.
bool has_dbias_tiles(const Problem& p) {
  return p.gradients.dbias && !p.deterministic && p.bias->spans.rows && p.layout.dbias[3] == 1 &&
         why_no_tma(p, Role::dbias).empty();
}
// Operations of a backward's products, at most: a causal one has half of them, and packed sequences may be shorter.
// With fewer than kGuardedWork, 0.3 ms of an H200, the 3 us of a second launch would count.
constexpr double kGuardedWork = 1.5e11;
constexpr int kZeroesUnderWork = 2048;  // keys: with 4096 the pre kernel's zeros take less than 1 % of a call
double work_of(const Problem& p) {
  const BandMask band = band_mask(p, p.seq_q, p.seq_k);
  const auto rows = static_cast<double>(p.varlen ? p.total_q : p.batch * p.seq_q);
  auto keys = static_cast<double>(p.seq_k);
  if (band.left >= 0 && band.right >= 0) keys = std::min(keys, 1.0 + static_cast<double>(band.left + band.right));
  return 2 * rows * keys * static_cast<double>(p.heads_q * (3 * p.dim_qk + 2 * p.dim_v));
}
BackwardConfig config_of(const Problem& p, const BackwardFeatures& b) {
  const AttentionFeatures& f = b.forward.attention;
  const int dim = std::max(f.dim_qk, f.dim_v);
  BackwardConfig c{};
  c.block_q = 64;
  c.bias_tiles = dim <= 128 && bytes_of(f.bias) == 2 && stages_bias(p);
  c.dbias_tiles = c.bias_tiles && has_dbias_tiles(p) && !f.dropout;  // no registers for both
  c.dbias_adds = c.dbias_tiles && !(p.bias->spans.batch && p.bias->spans.heads);
  const bool plain = plain_scores(b, c);
  if (dim <= 64) {
    c.block_q = bare_scores(f) && !f.bounded_left ? 128 : 64;
  } else {
    c.split = dim > 128 || (plain ? register_pressure(b) + b.dentropy > kMaxPlain
                                  : f.softcap || f.score_mod || f.bias != ScalarType::none ||
                                        register_pressure(b) > most_of(f, false));
  }
  c.ahead =
      c.split && dim > 128 && dim <= 192 && plain && (std::min(f.dim_qk, f.dim_v) <= 128 || register_pressure(b) == 0);
  // Two blocks share what they add; there is room in shared memory to stage it where K has three blocks of columns.
  c.paired = c.split && plain_scores(b, c) && round_up(f.dim_qk, 16) == 192 && f.dim_v <= 192 && b.dq &&
             !b.deterministic && !f.dropout && f.bias == ScalarType::none;
  if (c.paired) c.ahead = false;
  c.held = !c.paired ? 0 : f.dim_v <= 128 ? 12 : 6;
  if (!plain || c.split) c.bias_tiles = c.dbias_tiles = c.dbias_adds = false;
  c.guarded = work_of(p) >= kGuardedWork;
  c.zeroes = c.guarded && p.seq_k <= kZeroesUnderWork && may_zero(p, b, c);
  return c;
}

class State final : public cuda::KernelState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const BackwardConfig& config)
      : KernelState(request, device),
        seen_(cuda::packed_problem(problem)),
        config_(config),
        backward_(kernels_, seen_, problem, device, cuda::backward_features_of(*seen_), shape_of(*seen_, config),
                  kSumTile),
        shapes_(map_shapes(*seen_, config)) {
    const BackwardFeatures& f = backward_.features;
    workspace_bytes = backward_.workspace_bytes();
    const auto add = [&](const BackwardConfig& launched, bool early) {
      const unsigned cluster = launched.paired ? 2 : 1;
      const std::int64_t blocks = std::min(std::int64_t{device.multiprocessors}, kMostBlocks),
                         clusters = std::min(tiles_of(*seen_, launched), blocks / cluster);
      const auto* const kernel =
          kernels_.add(std::tuple{f, backward_.shape, launched, cuda::mods_key(*seen_)}, layout_of(f, launched).total,
                       [p = seen_](const auto& values, const std::string&) {
                         const auto& [features, shape, c, mods] = values;
                         return program_of(features, shape, c, cuda::mods_source(*p, 1));
                       });
      launches_.push_back({kernel, {clusters * cluster, 384, early, cluster}});
    };
    add(config_, backward_.early && !f.dbias && backward_.rows > 0);
    if (config_.guarded) add(careful_of(config_), backward_.early);
    zeroed_ = f.dbias && !writes_all_dbias(f, config_) ? dense_bytes(*seen_, Role::dbias) : 0;
    BackwardParams groups{};
    set_head_groups(groups, *seen_, config_, device.multiprocessors, device.l2_bytes);
    head_group_ = groups.head_group, tail_heads_ = groups.tail_heads;
  }

  std::string describe() const override {
    return text(config_.block_k(), " keys x ", config_.block_q, " rows, ",
                config_.split ? "products shared by two consumer warpgroups, " : "two consumer warpgroups of 64 keys, ",
                config_.paired ? "two CTAs share dQ, " : "", launches_[0].kernel->shared_bytes,
                " bytes of shared memory", cuda::packing_of(*problem, *seen_), backward_.order());
  }

 private:
  struct Step {
    const cuda::PlannedKernel* kernel;
    cuda::Grid grid;
  };
  void launch(const cuda::Call& call) const override {
    BackwardParams params = backward_.begin(call);
    if (launches_[0].grid.blocks > 0) {
      if (zeroed_ > 0) call.zero(params.dbias, zeroed_);
      params.head_group = head_group_, params.tail_heads = tail_heads_;
      BackwardMaps maps = maps_of(shapes_, call.tensors, cuda::tensor_map);
      for (const Step& step : launches_)
        call.launch(*step.kernel, step.grid, maps.q, maps.k, maps.v, maps.dout, maps.bias, maps.dbias, params);
    }
    backward_.finish(call, params);
  }

  const std::shared_ptr<const Problem> seen_;  // by the kernels
  const BackwardConfig config_;
  const cuda::BackwardLaunch backward_;
  const BackwardMapShapes shapes_;
  std::vector<Step> launches_;
  std::size_t zeroed_;  // bytes of dbias that are set to zero in front
  int head_group_, tail_heads_;
};

Decision plan(const Request& request) { return cuda::plan_backward<State>(request, config_on); }

}  // namespace

Selected<BackwardConfig> config_on(const cuda::DeviceFacts& device, const Problem& p, const BackwardFeatures& f) {
  if (device.major != 9) return refuse(why_no_hopper(device));
  return select_config(p, f);
}

Selected<BackwardConfig> select_config(const Problem& p, const BackwardFeatures& f) {
  if (p.dtype == DType::f32) return refuse("requires fp16 or bf16 (q is fp32)");
  if (p.out_dtype != p.dtype)
    return refuse("dout must have the dtype of q, ", name_of(p.dtype), " (got ", name_of(p.out_dtype), ")");
  if (p.dim_qk > 256 || p.dim_v > 256)
    return refuse("head dims must be at most 256 (got ", p.dim_qk, "/", p.dim_v, ")");
  for (const Role role : {Role::q, Role::k, Role::v, Role::dout}) {
    if (std::string s = why_no_tma(p, role); !s.empty()) return refuse(s);
  }
  for (const auto& [role, wanted] : {std::pair{Role::dk, p.gradients.dk}, {Role::dv, p.gradients.dv}}) {
    if (std::string s = why_no_vectors(p, role, 8); wanted && !s.empty()) return refuse(s);
  }
  if (p.gradients.dbias) {
    if (dense_bytes(p, Role::dbias) == 0) return refuse("dbias must be contiguous");
    const BroadcastDims& spans = p.bias->spans;
    if (p.deterministic && !(spans.batch && spans.heads && spans.rows && p.layout.bias[3] != 0))
      return refuse("does not support a deterministic gradient of a broadcast bias");
  }
  BackwardConfig most{};  // tiles
  most.split = true;
  if (std::string s = cuda::why_too_many(p, tiles_of(p, most)); !s.empty()) return refuse(s);
  const BackwardConfig c = config_of(p, f);
  const bool narrow = std::max(p.dim_qk, p.dim_v) <= 64;
  if (register_pressure(f) > (narrow                           ? 5
                              : !c.split && plain_scores(f, c) ? kMaxPlain
                                                               : most_of(f.forward.attention, c.split)))
    return refuse("this combination of score features does not fit into registers");
  if (const int bytes = layout_of(f, c).total; bytes > kSharedBytes)
    return refuse("tiles need ", bytes, " bytes of shared memory; the limit is ", kSharedBytes);
  return c;
}

// In a short call the first sums would wait for zeros (512 rows of 32 heads, 49 us: 2 us). Causally, query heads that
// share keys reuse L2, through which the zeros pass: 2.28 ms became 2.31.
// Sums in order gained nothing.
bool may_zero(const Problem& p, const BackwardFeatures& f, const BackwardConfig& c) {
  const bool causal = band_mask(p, p.seq_q, p.seq_k).right >= 0;
  return !c.split && f.dq && !f.deterministic && !p.varlen && !(causal && p.group() > 1) && p.seq_k > c.block_k();
}
BackwardConfig careful_of(BackwardConfig c) {
  c.careful = true;
  return c;
}

static int mark_blocks(const Problem& p, const BackwardConfig& c) {
  const AttentionFeatures f = cuda::features_of(p).attention;
  if (!c.guarded || stores_marks(f, c)) return 0;
  return static_cast<int>(std::min(kMostBlocks, tiles_of(p, c) * (c.paired ? 2 : 1)));
}
BackwardShape shape_of(const Problem& p, const BackwardConfig& c) {
  return {.block_q = c.block_q,
          .block_k = 16,
          .key_warps = c.split ? 2 : 1,
          .sum_columns = dq_block_floats(static_cast<int>(p.dim_qk), c.block_q) / c.block_q,
          .zero_sums = !c.zeroes,
          .mask_fragments = p.bool_mask && !c.split,
          .careful = c.guarded,
          .mark_blocks = mark_blocks(p, c),
          .read_bytes = std::min(cuda::row_alignment(p, Role::out), cuda::row_alignment(p, Role::dout)),
          .write_bytes = p.gradients.dq ? cuda::row_alignment(p, Role::dq) : 16,
          .row_bytes = 16,
          .turn_keys = p.bool_mask && p.deterministic && p.gradients.dq ? c.tile_k() : 0,
          .group_turns = true};
}

BackwardMapShapes map_shapes(const Problem& p, const BackwardConfig& c) {
  const std::int64_t batch = p.varlen ? 1 : p.batch, tokens_q = p.varlen ? p.total_q : p.seq_q,
                     tokens_k = p.varlen ? p.total_k : p.seq_k;
  const auto shape = [&](const Dims& s, std::int64_t heads, std::int64_t tokens, std::int64_t dim, int rows) {
    return cuda::TensorMapShape(p.dtype, {dim, tokens, heads, batch}, {s[2], s[1], s[0]}, rows);
  };
  BackwardMapShapes m{};
  m.queries = tokens_q > 0;
  m.q = shape(p.layout.q, p.heads_q, tokens_q, p.dim_qk, c.block_q);
  m.k = shape(p.layout.k, p.heads_kv, tokens_k, p.dim_qk, c.block_k());
  m.v = shape(p.layout.v, p.heads_kv, tokens_k, p.dim_v, c.block_k());
  m.dout = shape(p.layout.dout, p.heads_q, tokens_q, p.dim_v, c.block_q);
  m.bias_tiles = c.bias_tiles && m.queries, m.dbias_tiles = c.dbias_tiles && m.queries;
  const auto scores = [&](DType dtype, const Dims& s, std::int64_t heads, std::int64_t entries) {
    return cuda::TensorMapShape(dtype, {p.seq_k, p.seq_q, heads, entries}, {s[2], s[1], s[0]}, 64);
  };
  if (m.bias_tiles) m.bias = scores(p.bias->dtype, p.layout.bias, p.heads_q, p.batch);
  if (m.dbias_tiles)
    m.dbias =
        scores(DType::f32, p.layout.dbias, p.bias->spans.heads ? p.heads_q : 1, p.bias->spans.batch ? p.batch : 1);
  return m;
}

BackwardMaps maps_of(const BackwardMapShapes& m, const Tensors& t, cuda::MapTensor map_tensor) {
  BackwardMaps maps{};
  maps.q = map_tensor(m.queries ? t.q.data : t.k.data, m.q);
  maps.k = map_tensor(t.k.data, m.k);
  maps.v = map_tensor(t.v.data, m.v);
  maps.dout = map_tensor(m.queries ? t.dout.data : t.k.data, m.dout);
  maps.bias = m.bias_tiles ? map_tensor(t.bias.data, m.bias) : maps.k;
  maps.dbias = m.dbias_tiles ? map_tensor(t.dbias.data, m.dbias) : maps.k;
  return maps;
}

bool writes_all_dbias(const BackwardFeatures& f, const BackwardConfig& c) {
  const AttentionFeatures& a = f.forward.attention;
  return c.dbias_tiles && !c.dbias_adds && !a.bounded_left && !a.bounded_right && !a.bool_mask;
}

std::int64_t tiles_of(const Problem& p, const BackwardConfig& c) {
  return p.heads_kv * padded_blocks(p.varlen, p.batch, p.seq_k, p.total_k, c.tile_k());
}

// Causally, heads whose Q, dO and sums of dQ fit two thirds of L2 together, their longest tiles first; the last few as
// one group, at most twice the size, so that the end is balanced. Where dQ is added in one order, the shortest tiles
// come first, and there is no such group. A head then takes one more tile in the time of a block, so tiles of several
// heads come by turns in every problem; of fewer heads, since they go on side by side (d128 4k, of the time in any
// order: 4 heads, 17 MB, 1.08, 8 heads 1.13; causally 8 heads 1.11, 16 heads 1.32, and in another run 10 heads 1.15).
void set_head_groups(BackwardParams& b, const Problem& p, const BackwardConfig& c, int multiprocessors, int l2_bytes) {
  b.head_group = 1;
  b.tail_heads = 0;
  if (c.paired) multiprocessors /= 2;
  constexpr std::int64_t kMax = 32;
  const bool causal = band_mask(p, p.seq_q, p.seq_k).right >= 0, by_turns = p.deterministic && p.gradients.dq;
  if (p.varlen) return;
  const std::int64_t heads = std::max<std::int64_t>(1, p.heads_kv * p.batch),
                     tiles = std::max<std::int64_t>(1, ceil_div(p.seq_k, c.tile_k()));
  if (c.dbias_adds && !p.bias->spans.batch) {  // what those that share a bias add to its gradient meets in L2
    b.head_group = static_cast<int>(std::clamp<std::int64_t>(p.bias->spans.heads ? p.batch : heads, 1, kMax));
    return;
  }
  if (!causal && !by_turns) return;
  if (causal && p.group() > 1) {  // a group fills the multiprocessors once (KeysOuter), by turns twice
    const std::int64_t at_once = std::int64_t{multiprocessors} * (by_turns ? 2 : 1);
    b.head_group = static_cast<int>(std::clamp<std::int64_t>((at_once + tiles / 2) / tiles, 1, heads));
    return;
  }
  const std::int64_t bytes = std::max<std::int64_t>(1, p.group() * p.seq_q * (p.dim_qk * 6 + p.dim_v * 2)),
                     room =
                         !by_turns ? 2 * std::int64_t{l2_bytes} / 3 : l2_bytes * std::int64_t{causal ? 55 : 30} / 100;
  const std::int64_t group = std::clamp<std::int64_t>(room / bytes, 1, kMax);
  const std::int64_t tail = 4 * multiprocessors / tiles;
  b.head_group = static_cast<int>(std::min(group, heads));
  if (tail <= 16 && tail > group && !by_turns) b.tail_heads = static_cast<int>(std::min({tail, 2 * group, heads}));
}

cuda::KernelProgram program_of(const BackwardFeatures& f, const BackwardShape& shape, const BackwardConfig& c,
                               const std::string& mods) {
  const AttentionFeatures& a = f.forward.attention;
  return {
      c.split ? "cuda/sm90/backward/consumer/split.cuh" : "cuda/sm90/backward/backward.cuh",
      "attention_backward",
      text(cuda::backward_source(f, shape),
           cuda::config_line("cuda/sm90/backward/config.hpp", "onepass::sm90", "BackwardConfig config", c)),
      "sm_90a",
      mods,
      cuda::wgmma_source({c.block_q, round_up(a.dim_qk, 16), round_up(a.dim_v, 16), dq_columns(a.dim_qk, c.block_q, 0),
                          c.paired ? kPairedColumns[1] : dq_columns(a.dim_qk, c.block_q, 1)},
                         operand_of(a.input))};
}

constinit const Implementation kBackwardImplementation{"cuda.sm90_backward", plan, kBackward};

}  // namespace onepass::sm90
