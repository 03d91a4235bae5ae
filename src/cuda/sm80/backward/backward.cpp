#include "cuda/sm80/backward/backward.hpp"

#include <algorithm>
#include <tuple>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/sm80/host.hpp"
#include "onepass/error.hpp"

namespace onepass::sm80 {
namespace {

// Rows in order; the first that computes the problem and leaves room for its `blocks` on a multiprocessor is taken.
struct TileConfig {
  int dim_qk, dim_v;  // up to these head dims
  Extras extras;
  int warps, row_tiles, share, block_m, stages, blocks;
  bool apart = false;
  bool held = false;  // where a CTA has at most kLittle, for copies of 16 bytes, an even dim_v and one part of dO
  int pieces = 1;
};
constexpr int kLittle = 99 * 1024;  // shared memory of a CTA, on 8.6, 8.9 and 12.0
constexpr TileConfig kConfigs16[] = {
    // dims       extras | warps row tiles share | m stages | blocks
    {64, 64, kBands, 4, 2, 1, 32, 2, 2},
    {64, 64, kBands, 4, 2, 1, 32, 2, 2, false, true},
    {64, 64, kAll, 4, 2, 1, 32, 2, 2, false, true, 2},
    {64, 64, kAll, 4, 1, 1, 32, 2, 2},
    {128, 128, kTerms, 4, 2, 2, 64, 2, 2},
    {128, 128, kTerms, 8, 2, 2, 64, 2, 1, true},
    {128, 128, kBands, 8, 2, 2, 64, 1, 1, true, true},
    {128, 128, kAll, 8, 2, 2, 64, 1, 1, true, true, 2},
    {128, 128, kAll, 8, 2, 4, 64, 2, 1, true},
    {128, 128, kAll, 8, 2, 4, 64, 1, 1, true},
    {256, 256, kAll, 8, 2, 4, 64, 2, 1, true},
    {256, 256, kAll, 8, 2, 4, 64, 1, 1, true},
    {256, 256, kAll, 8, 2, 4, 32, 2, 1, true, true},
    {256, 256, kAll, 8, 1, 2, 32, 1, 1},
    {256, 256, kAll, 4, 1, 2, 32, 1, 1},
    {576, 512, kAll, 8, 1, 2, 32, 1, 1},
    {576, 512, kAll, 4, 1, 2, 32, 1, 1},
    {576, 512, kAll, 2, 1, 2, 32, 1, 1},
    {576, 512, kAll, 2, 1, 2, 16, 1, 1},
};
constexpr TileConfig kConfigs32[] = {
    // dims    extras | warps row tiles share | m stages | blocks
    {64, 64, kPlain, 4, 1, 1, 32, 2, 3},   {64, 64, kBands, 4, 1, 1, 32, 2, 2}, {64, 64, kAll, 4, 1, 1, 16, 1, 2},
    {128, 128, kBands, 8, 1, 2, 32, 2, 1}, {128, 128, kAll, 4, 1, 2, 32, 1, 2}, {128, 128, kAll, 4, 1, 2, 32, 1, 1},
    {256, 256, kAll, 8, 1, 2, 32, 1, 1},   {256, 256, kAll, 4, 1, 2, 32, 1, 1}, {256, 256, kAll, 2, 1, 2, 32, 1, 1},
    {576, 512, kAll, 4, 1, 2, 32, 1, 1},   {576, 512, kAll, 4, 1, 2, 16, 1, 1}, {576, 512, kAll, 2, 1, 2, 32, 1, 1},
    {576, 512, kAll, 2, 1, 2, 16, 1, 1},
};

// How the tensors may be read and written.
void set_alignment(const Problem& p, const BackwardFeatures& f, BackwardConfig& c) {
  c.copy_bytes =
      std::min({cuda::row_alignment(p, Role::q), cuda::row_alignment(p, Role::k), cuda::row_alignment(p, Role::v)});
  if (p.out_dtype == p.dtype) c.copy_bytes = std::min(c.copy_bytes, cuda::row_alignment(p, Role::dout));
  const auto pair = 2 * static_cast<int>(size_of(p.grad_dtype));
  c.pairs = (!f.dk || (p.dim_qk % 2 == 0 && cuda::row_alignment(p, Role::dk) >= pair)) &&
            (!f.dv || (p.dim_v % 2 == 0 && cuda::row_alignment(p, Role::dv) >= pair));
}

class State final : public cuda::KernelState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const BackwardConfig& config)
      : KernelState(request, device),
        seen_(cuda::packed_problem(problem)),
        config_(config),
        backward_(kernels_, seen_, problem, device, cuda::backward_features_of(*seen_), shape_of(*seen_, config),
                  kSumTile),
        shared_bytes_(layout_of(backward_.features, config).total) {
    const BackwardFeatures& f = backward_.features;
    workspace_bytes = backward_.workspace_bytes();
    const auto add = [&](const BackwardFeatures& part, bool bias, std::int64_t blocks) {
      const auto* const kernel =
          kernels_.add(std::tuple{part, backward_.shape, config_, bias, cuda::mods_key(*seen_)}, shared_bytes_,
                       [p = seen_](const auto& values, const std::string& arch) {
                         const auto& [features, shape, c, of_bias, mods] = values;
                         return program_of(features, shape, c, arch, cuda::mods_source(*p, 1), of_bias);
                       });
      launches_.push_back({kernel, {blocks, config_.threads()}});
    };
    if (f.dv || f.scores()) {
      for (const BackwardFeatures& part : parts_of(f))
        add(part, false, std::min(backward_.key_tiles, std::int64_t{config_.blocks} * device.multiprocessors));
    }
    if (f.dbias) add(f, true, bias_tiles(backward_.decided, config_));
  }

  std::string describe() const override {
    const BackwardConfig& c = config_;
    return text(c.block_n(), " keys x ", c.block_m, " rows, ", c.warps, " warps of ", 16 * c.row_tiles, " keys, ",
                c.stages, c.stages == 1 ? " Q/dO stage, " : " Q/dO stages, ", c.held ? "V in registers, " : "",
                c.copy_bytes, "-byte copies, ", shared_bytes_, " bytes of shared memory", cuda::precision_of(*problem),
                cuda::packing_of(*problem, *seen_), backward_.order());
  }

 private:
  struct Step {
    const cuda::PlannedKernel* kernel;
    cuda::Grid grid;
  };
  void launch(const cuda::Call& call) const override {
    BackwardParams params = backward_.begin(call);
    for (const Step& step : launches_) call.launch(*step.kernel, step.grid, params);
    backward_.finish(call, params);
  }

  const std::shared_ptr<const Problem> seen_;  // by the kernels
  const BackwardConfig config_;
  const cuda::BackwardLaunch backward_;
  const int shared_bytes_;
  std::vector<Step> launches_;
};

Decision plan(const Request& request) { return cuda::plan_backward<State>(request, config_on); }

}  // namespace

std::vector<BackwardFeatures> parts_of(const BackwardFeatures& f) {
  const AttentionFeatures& a = f.forward.attention;
  const int both = a.input == ScalarType::f32 ? 128 : 256;  // head dims whose dK and dV fill the registers
  if (std::max(a.dim_qk, a.dim_v) <= both || !f.dv || !f.scores()) return {f};
  BackwardFeatures values = f, scores = f;
  values.dq = values.dk = values.dslopes = values.deterministic = false;
  scores.dv = false;
  return {values, scores};
}

std::int64_t bias_tiles(const BackwardParams& p, const BackwardConfig& c) {
  const auto blocks = [](std::int64_t n, int block) { return ceil_div(n, block); };
  return std::int64_t{p.bias_size[0]} * p.bias_size[1] * blocks(p.bias_size[2], c.block_m) *
         blocks(p.bias_size[3], c.block_n());
}

Selected<BackwardConfig> config_on(const cuda::DeviceFacts& device, const Problem& p, const BackwardFeatures& f) {
  if (device.major < 8) return refuse(cuda::why_too_old(device));
  return select_config(p, f, device.shared_bytes);
}

Selected<BackwardConfig> select_config(const Problem& p, const BackwardFeatures& f, int shared_bytes) {
  const AttentionFeatures& a = f.forward.attention;
  BackwardConfig c{};
  const auto fits = [&](const TileConfig& t) {
    c = {.warps = t.warps,
         .row_tiles = t.row_tiles,
         .share = t.share,
         .block_m = t.block_m,
         .stages = t.stages,
         .blocks = t.blocks,
         .copy_bytes = 16,
         .apart = t.apart,
         .pairs = false,
         .held = t.held,
         .pieces = t.pieces};
    set_alignment(p, f, c);
    if (c.held && (shared_bytes > kLittle || c.copy_bytes < 16 || a.dim_v % 2 != 0 || layout_of(f, c).dout_parts == 2))
      return false;
    return a.dim_qk <= t.dim_qk && a.dim_v <= t.dim_v &&
           std::max(extras_of(a, c.copy_bytes), f.deterministic ? kBands : kPlain) <= t.extras &&
           t.blocks * (layout_of(f, c).total + kReserved) <= shared_bytes + kReserved;
  };
  const bool fp32 = p.dtype == DType::f32;
  if (fp32 ? std::ranges::none_of(kConfigs32, fits) : std::ranges::none_of(kConfigs16, fits)) {
    return refuse("no configuration for head dims ", p.dim_qk, "/", p.dim_v, " fits ", shared_bytes,
                  " bytes of shared memory");
  }
  if (std::string sentence = cuda::why_too_many(p); !sentence.empty()) return refuse(sentence);
  const BackwardShape shape = shape_of(p, c);
  const std::int64_t rows = padded_blocks(p.varlen, p.batch, p.seq_q, p.total_q, shape.block_q) * p.heads_q,
                     keys = padded_blocks(p.varlen, p.batch, p.seq_k, p.total_k, shape.block_k) * p.heads_q;
  if (std::max(rows, keys) > cuda::kMaxPosition / (shape.block_k / 16))
    return refuse(p.batch, " x ", p.heads_q, " heads have too many blocks of ", shape.block_q, " rows or ",
                  shape.block_k, " keys for 32-bit indices");
  return c;
}

BackwardShape shape_of(const Problem& p, const BackwardConfig& c) {
  return {.block_q = c.block_m,
          .block_k = c.block_n(),
          .key_warps = c.block_n() / 16 * c.share,
          .sum_columns = round_up(static_cast<int>(p.dim_qk), 16),
          .zero_sums = true,
          .mask_fragments = false,
          .careful = false,
          .mark_blocks = 0,
          .read_bytes = std::min(cuda::row_alignment(p, Role::out), cuda::row_alignment(p, Role::dout)),
          .write_bytes = p.gradients.dq ? cuda::row_alignment(p, Role::dq) : 16,
          .row_bytes = c.copy_bytes,
          .turn_keys = p.bool_mask && p.deterministic && p.gradients.dq ? c.block_n() : 0,
          .group_turns = false};
}

cuda::KernelProgram program_of(const BackwardFeatures& f, const BackwardShape& shape, const BackwardConfig& c,
                               const std::string& arch, const std::string& mods, bool bias) {
  return {bias ? "cuda/sm80/backward/bias.cuh" : "cuda/sm80/backward/backward.cuh",
          bias ? "attention_backward_bias" : "attention_backward",
          text(cuda::backward_source(f, shape),
               cuda::config_line("cuda/sm80/backward/config.hpp", "onepass::mma", "sm80::BackwardConfig config", c),
               products_of(f.forward.attention.input)),
          arch, mods};
}

constinit const Implementation kBackwardImplementation{"cuda.sm80_backward", plan, kBackward};

}  // namespace onepass::sm80
