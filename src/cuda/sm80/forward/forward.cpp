#include "cuda/sm80/forward/forward.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <tuple>

#include "cuda/attention/forward_launch.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/sm80/host.hpp"
#include "onepass/error.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::sm80 {
namespace {

// Rows in order; the first that computes the problem and leaves room for its `blocks` on a multiprocessor is taken, so
// the rows of a head dim go from devices with much shared memory (227 KiB on Hopper) to those with little (99 KiB
// on 8.6, 8.9 and 12.0). README.md has the measurements behind each.
struct TileConfig {
  int dim_qk, dim_v;  // up to these head dims
  Extras extras;
  int warps, row_tiles, block_n, stages;
  bool q_registers;
  int blocks;
  int share = 1;
  int column_groups = 64;  // where dim_v is at most this
  int least_tiles = 0;     // whole ones, of equal lengths
};
constexpr int kWaves = 512;  // tiles of 256 rows that keep the multiprocessors busy
constexpr TileConfig kConfigs16[] = {
    // dims    extras | warps row tiles n stages | Q in registers | blocks
    {64, 64, kBands, 4, 2, 48, 2, false, 3},
    {64, 64, kBands, 4, 2, 64, 2, true, 2},
    {64, 64, kBands, 4, 2, 48, 2, true, 2},
    {64, 64, kAll, 4, 1, 64, 2, true, 2},
    {128, 128, kPlain, 4, 2, 64, 2, false, 2},
    {128, 128, kBands, 4, 2, 48, 2, false, 2},
    {128, 128, kPlain, 8, 2, 64, 1, false, 1, 1, 64, kWaves},
    {128, 128, kBands, 4, 2, 32, 1, false, 2},
    {128, 128, kAll, 4, 1, 32, 2, false, 2},
    {192, 128, kBands, 4, 2, 48, 1, false, 2},
    {256, 256, kBands, 4, 1, 64, 1, false, 2},
    {256, 256, kBands, 8, 1, 64, 1, false, 1},
    {256, 256, kBands, 8, 1, 32, 1, true, 1},
    {256, 256, kAll, 4, 1, 32, 1, false, 2},
    {256, 256, kAll, 4, 1, 16, 1, false, 2},
    {576, 512, kBands, 8, 1, 64, 1, false, 1, 2},
    {576, 512, kAll, 8, 1, 32, 1, false, 1, 2},
    {576, 512, kAll, 4, 1, 32, 1, false, 1, 2},
    {576, 512, kAll, 2, 1, 32, 1, false, 1, 2},
};
constexpr TileConfig kConfigs32[] = {
    // dims     extras | warps row tiles n stages | Q in registers | blocks
    {64, 64, kBands, 4, 2, 32, 2, false, 2},    {64, 64, kBands, 4, 2, 32, 1, false, 2},
    {64, 64, kAll, 4, 1, 32, 2, false, 2},      {128, 128, kBands, 4, 2, 16, 2, false, 2},
    {128, 128, kBands, 8, 1, 16, 2, false, 1},  {128, 128, kAll, 4, 1, 16, 2, false, 2},
    {128, 128, kAll, 4, 1, 16, 2, false, 1},    {256, 256, kAll, 4, 1, 16, 1, false, 2},
    {256, 256, kBands, 8, 1, 16, 1, false, 1},  {256, 256, kAll, 4, 1, 16, 1, false, 1},
    {576, 512, kAll, 8, 1, 16, 1, false, 1, 2}, {576, 512, kAll, 4, 1, 16, 1, false, 1, 2},
    {576, 512, kAll, 2, 1, 16, 1, false, 1, 2},
};
// How the tensors may be read and written.
void set_alignment(const Problem& p, ForwardConfig& c) {
  c.copy_bytes =
      std::min({cuda::row_alignment(p, Role::q), cuda::row_alignment(p, Role::k), cuda::row_alignment(p, Role::v)});
  const std::int64_t row = p.dim_v * static_cast<std::int64_t>(size_of(p.dtype));
  c.staged = p.out_dtype == p.dtype && row % 16 == 0 && cuda::row_alignment(p, Role::out) == 16;
}

cuda::TileShape tile_shape_of(const ForwardConfig& c) { return {c.block_m(), c.block_n, c.warps * c.row_tiles}; }

class State final : public cuda::KernelState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const ForwardConfig& config, const cuda::Part& part)
      : KernelState(request, device),
        seen_(cuda::packed_problem(problem)),
        config_(config),
        forward_(kernels_, *seen_, device, tile_shape_of(config), problem, part) {
    const ForwardFeatures features = cuda::features_of(*seen_);
    workspace_bytes = forward_.workspace_bytes;
    idle_ = forward_.decided.tiles == 0;
    kernel_ = kernels_.add(std::tuple{features, config, cuda::mods_key(*seen_)}, layout_of(features, config).total,
                           [p = seen_](const auto& values, const std::string& arch) {
                             const auto& [f, c, mods] = values;
                             return program_of(f, c, arch, cuda::mods_source(*p));
                           });
  }

  std::string describe() const override {
    const ForwardConfig& c = config_;
    return text(c.block_m(), " x ", c.block_n, " tiles, ", c.warps, " warps of ", 16 * c.row_tiles,
                c.share == 1 ? " rows, " : " rows in pairs, ", c.stages,
                c.stages == 1 ? " K/V stage, " : " K/V stages, ", c.q_registers ? "Q in registers, " : "", c.copy_bytes,
                "-byte copies, ", kernel_->shared_bytes, " bytes of shared memory", cuda::precision_of(*problem),
                cuda::packing_of(*problem, *seen_));
  }

 private:
  void launch(const cuda::Call& call) const override {
    EntropyParams params = forward_.params(call);
    call.launch(*kernel_, {std::min(params.tiles, config_.blocks * device_.multiprocessors), config_.threads()},
                params);
  }

  const std::shared_ptr<const Problem> seen_;  // by the kernel
  const ForwardConfig config_;
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

Selected<ForwardConfig> config_on(const cuda::DeviceFacts& device, const Problem& p) {
  if (device.major < 8) return refuse(cuda::why_too_old(device));
  return select_config(p, device.shared_bytes);
}

Selected<ForwardConfig> select_config(const Problem& p, int shared_bytes) {
  if (std::string sentence = why_no_fp8(p); !sentence.empty()) return refuse(sentence);
  const ForwardFeatures features = cuda::features_of(p);
  const AttentionFeatures& f = features.attention;
  ForwardConfig c{};
  const auto fits = [&](const TileConfig& s) {
    c = {.warps = s.warps,
         .row_tiles = s.row_tiles,
         .share = s.share,
         .block_n = s.block_n,
         .stages = s.stages,
         .q_registers = s.q_registers,
         .column_groups = f.dim_v <= s.column_groups,
         .blocks = s.blocks,
         .copy_bytes = 16,
         .staged = true};
    set_alignment(p, c);
    const std::int64_t whole = p.varlen || p.batch_invariant ? 0 : p.batch * p.heads_q * (p.seq_q / c.block_m());
    return whole >= s.least_tiles && f.dim_qk <= s.dim_qk && f.dim_v <= s.dim_v &&
           extras_of(f, c.copy_bytes) <= s.extras &&
           s.blocks * (layout_of(features, c).total + kReserved) <= shared_bytes + kReserved;
  };
  if (p.dtype == DType::f32 ? std::ranges::none_of(kConfigs32, fits) : std::ranges::none_of(kConfigs16, fits))
    return refuse("no configuration for head dims ", p.dim_qk, "/", p.dim_v, " fits ", shared_bytes,
                  " bytes of shared memory");

  if (std::string sentence = cuda::why_too_many(p); !sentence.empty()) return refuse(sentence);
  if (std::string sentence = cuda::why_no_entropy(p); !sentence.empty()) return refuse(sentence);
  constexpr std::int64_t kMax = cuda::kMaxPosition;
  if (p.batch * p.heads_q > kMax || cuda::tile_bound(p, tile_shape_of(c)) > kMax / tile_shape_of(c).warps)
    return refuse(p.batch, " x ", p.heads_q, " heads have too many tiles of ", c.block_m(), " rows for 32-bit indices");
  return c;
}

cuda::KernelProgram program_of(const ForwardFeatures& f, const ForwardConfig& c, const std::string& arch,
                               const std::string& mods) {
  return {"cuda/sm80/forward/forward.cuh", "attention_forward",
          text(cuda::features_source(f),
               cuda::config_line("cuda/sm80/forward/config.hpp", "onepass::mma", "sm80::ForwardConfig config", c),
               products_of(f.attention.input)),
          arch, mods};
}

constinit const Implementation kForwardImplementation{"cuda.sm80",
                                                      [](const Request& r) { return plan_forward(r, {}); }};

}  // namespace onepass::sm80
