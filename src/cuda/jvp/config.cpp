// Tables of configs, and what decides among them.
#include <algorithm>

#include "cuda/host/config_source.hpp"
#include "cuda/jvp/jvp.hpp"
#include "cuda/sm80/host.hpp"

namespace onepass::cuda::jvp {
namespace {

using sm80::kAll, sm80::kBands, sm80::kPlain;

// Rows in order; the first that computes the problem and leaves room for its `blocks` on a multiprocessor is taken.
struct TileConfig {
  int dim_qk, dim_v;  // up to these head dims
  sm80::Extras extras;
  int warps, row_tiles, share, block_n, stages, blocks;
};
constexpr TileConfig kConfigs16[] = {
    // dims      extras | warps row tiles share | n stages | blocks
    {64, 64, kPlain, 4, 2, 1, 32, 2, 2}, {64, 64, kAll, 4, 1, 1, 32, 2, 2},     {128, 128, kBands, 8, 1, 1, 32, 2, 1},
    {128, 128, kAll, 8, 1, 1, 16, 2, 1}, {256, 128, kBands, 8, 1, 1, 32, 1, 1}, {256, 256, kAll, 8, 1, 2, 32, 1, 1},
    {256, 256, kAll, 8, 1, 2, 16, 1, 1},
};
constexpr TileConfig kConfigs32[] = {
    {64, 64, kAll, 4, 1, 1, 16, 2, 2},   {128, 128, kAll, 8, 1, 1, 16, 1, 1}, {128, 128, kAll, 4, 1, 1, 16, 1, 1},
    {256, 256, kAll, 8, 1, 2, 16, 1, 1}, {256, 256, kAll, 4, 1, 2, 16, 1, 1}, {256, 256, kAll, 2, 1, 2, 16, 1, 1},
};

// How the tensors may be read and written.
void set_alignment(const Problem& p, JvpConfig& c) {
  c.copy_bytes = 16;
  for (const Role role : {Role::q, Role::k, Role::v, Role::tq, Role::tk, Role::tv})
    c.copy_bytes = std::min(c.copy_bytes, cuda::row_alignment(p, role));
  const std::int64_t row = p.dim_v * static_cast<std::int64_t>(size_of(p.dtype));
  c.staged = p.out_dtype == p.dtype && row % 16 == 0 && cuda::row_alignment(p, Role::out) == 16 &&
             cuda::row_alignment(p, Role::tout) == 16;
}

}  // namespace

std::string features_source(const JvpFeatures& f) {
  return text(cuda::config_line("cuda/jvp/jvp_params.hpp", "onepass", "JvpFeatures jvp_features", f),
              "namespace onepass {\nconstexpr ForwardFeatures forward_features = jvp_features.forward;\n"
              "constexpr AttentionFeatures features = forward_features.attention;\n}\n");
}

cuda::TileShape tile_shape_of(const JvpConfig& c) { return {c.block_m(), c.block_n, 0}; }

JvpFeatures features_of(const Problem& p) {
  JvpFeatures f{.forward = cuda::features_of(p), .tbias = p.tbias, .tsinks = p.tsinks};
  f.forward.attention.pair_tanh = false;  // the cap's derivative wants each tanh
  return f;
}

Selected<JvpConfig> select_config(const Problem& p, int shared_bytes) {
  constexpr int kWidest = 256;
  if (p.dim_qk > kWidest || p.dim_v > kWidest)
    return refuse("head dims must be at most ", kWidest, " (got ", p.dim_qk, "/", p.dim_v, ")");
  const JvpFeatures features = features_of(p);
  const AttentionFeatures& f = features.forward.attention;
  JvpConfig c{};
  const auto fits = [&](const TileConfig& t) {
    c = {.warps = t.warps,
         .row_tiles = t.row_tiles,
         .share = t.share,
         .block_n = t.block_n,
         .stages = t.stages,
         .blocks = t.blocks,
         .copy_bytes = 16,
         .staged = true};
    set_alignment(p, c);
    return f.dim_qk <= t.dim_qk && f.dim_v <= t.dim_v && sm80::extras_of(f, c.copy_bytes) <= t.extras &&
           t.blocks * (layout_of(features, c).total + sm80::kReserved) <= shared_bytes + sm80::kReserved;
  };
  if (p.dtype == DType::f32 ? std::ranges::none_of(kConfigs32, fits) : std::ranges::none_of(kConfigs16, fits))
    return refuse("no configuration for head dims ", p.dim_qk, "/", p.dim_v, " fits ", shared_bytes,
                  " bytes of shared memory");
  if (std::string sentence = cuda::why_elsewhere(p, cuda::tile_bound(p, tile_shape_of(c))); !sentence.empty())
    return refuse(sentence);
  if (p.batch * p.heads_q > cuda::kMaxPosition)
    return refuse("batch x heads_q must be at most ", cuda::kMaxPosition, " (got ", p.batch * p.heads_q, ")");
  return c;
}

cuda::KernelProgram program_of(const JvpFeatures& f, const JvpConfig& c, const std::string& arch,
                               const std::string& mods) {
  return {"cuda/jvp/jvp.cuh", "attention_jvp",
          text(features_source(f),
               cuda::config_line("cuda/jvp/config.hpp", "onepass::mma", "cuda::jvp::JvpConfig config", c),
               sm80::tangents_of(f.forward.attention.input)),
          arch, mods};
}
cuda::KernelProgram plain_program(const JvpFeatures& f, const std::string& arch, const std::string& mods) {
  return {"cuda/jvp/plain.cuh", "attention_jvp_plain", features_source(f), arch, mods};
}

}  // namespace onepass::cuda::jvp
