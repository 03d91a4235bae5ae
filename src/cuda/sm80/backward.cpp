#include "cuda/sm80/backward.hpp"

#include <algorithm>
#include <tuple>

#include "core/text.hpp"
#include "cuda/attention/mods.hpp"
#include "cuda/host/initializer.hpp"
#include "cuda/sm80/host.hpp"
#include "onepass/error.hpp"

namespace onepass::sm80 {
namespace {

// Rows in order; the first that computes the problem and leaves room for its `blocks` on a multiprocessor is taken.
struct TileConfig {
  int dim_qk, dim_v;  // up to these head dims
  Extras extras;
  int warps, row_tiles, block_m, stages, blocks;
};
constexpr TileConfig kConfigs16[] = {
    // dims    extras | warps row tiles m stages blocks
    {64, 64, kBands, 4, 2, 32, 2, 2},
    {64, 64, kAll, 4, 1, 32, 2, 2},
    {128, 128, kBands, 4, 1, 32, 2, 2},
    {128, 128, kAll, 4, 1, 16, 2, 2},
};
constexpr TileConfig kConfigs32[] = {
    // dims    extras | warps row tiles m stages blocks
    {64, 64, kBands, 4, 1, 32, 2, 2},
    {64, 64, kAll, 4, 1, 16, 1, 2},
    {128, 128, kBands, 4, 1, 32, 1, 2},
    {128, 128, kAll, 4, 1, 16, 1, 1},
};

// How the tensors may be read and written.
void set_alignment(const Problem& p, const BackwardFeatures& f, BackwardConfig& c) {
  c.copy_bytes = std::min({alignment_of(p, Role::q), alignment_of(p, Role::k), alignment_of(p, Role::v)});
  static_cast<void>(f);
}

// The bindings name every field: one that is added and not printed does not compile.
std::string config_source(const BackwardConfig& c) {
  const auto& [warps, row_tiles, block_m, stages, blocks, copy_bytes, pairs] = c;
  return cuda::Initializer()
      .field("warps", warps)
      .field("row_tiles", row_tiles)
      .field("block_m", block_m)
      .field("stages", stages)
      .field("blocks", blocks)
      .field("copy_bytes", copy_bytes)
      .field("pairs", pairs)
      .source();
}

}  // namespace

bool select_config(const Problem& p, const BackwardFeatures& f, int shared_bytes, BackwardConfig& c, std::string& why) {
  const AttentionFeatures& a = f.forward.attention;
  const auto fits = [&](const TileConfig& t) {
    c = {.warps = t.warps,
         .row_tiles = t.row_tiles,
         .block_m = t.block_m,
         .stages = t.stages,
         .blocks = t.blocks,
         .copy_bytes = 16,
         .pairs = false};
    set_alignment(p, f, c);
    return a.dim_qk <= t.dim_qk && a.dim_v <= t.dim_v && extras_of(a, c.copy_bytes) <= t.extras &&
           t.blocks * (layout_of(f, c).total + kReserved) <= shared_bytes + kReserved;
  };
  const bool fp32 = p.dtype == DType::f32;
  if (fp32 ? std::ranges::none_of(kConfigs32, fits) : std::ranges::none_of(kConfigs16, fits)) {
    why = text("none of its configs for head dims ", p.dim_qk, "/", p.dim_v, " fits ", shared_bytes,
               " bytes of shared memory");
    return false;
  }
  return true;
}

BackwardShape shape_of(const Problem& p, const BackwardFeatures& f, const BackwardConfig& c) {
  static_cast<void>(p);
  return {.block_q = c.block_m,
          .block_k = c.block_n(),
          .sum_columns = padded(f.forward.attention.dim_qk, 16),
          .zero_sums = true,
          .read_bytes = 4,
          .write_bytes = 4};
}

cuda::KernelProgram program_of(const BackwardFeatures& f, const BackwardShape& shape, const BackwardConfig& c,
                               const std::string& arch, const std::string& mods) {
  return {"cuda/sm80/backward.cuh", "attention_backward",
          text(cuda::backward_source(f, shape), "#include \"cuda/sm80/backward_config.hpp\"\n",
               "namespace onepass::sm80 { constexpr BackwardConfig config = ", config_source(c), "; }\n",
               products_of(f.forward.attention.input)),
          arch, mods};
}

}  // namespace onepass::sm80
