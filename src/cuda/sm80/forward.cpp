#include "cuda/sm80/forward.hpp"

#include <algorithm>
#include <tuple>

#include "core/arguments.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/mods.hpp"
#include "cuda/host/initializer.hpp"
#include "cuda/host/kernels.hpp"
#include "onepass/error.hpp"

namespace onepass::sm80 {
namespace {

// What a row computes besides Q K^T, a band bounded on one side, and P V; each takes registers.
enum Extras {
  kPlain,
  kBands,  // windows bounded on both sides, packed sequences
  kAll     // score transforms, masks, dropout; copies in pieces of less than 16 bytes
};
// Rows in order; the first that computes the problem and leaves room for its `blocks` on a multiprocessor is taken, so
// the rows of a head dim go from devices with much shared memory (227 KiB on Hopper) to those with little (99 KiB
// on 8.6, 8.9 and 12.0). README.md has the measurements behind each.
struct TileConfig {
  int dim_qk, dim_v;  // up to these head dims
  Extras extras;
  int warps, row_tiles, block_n, stages;
  bool q_registers;
  int blocks;
  int column_groups = 64;  // where dim_v is at most this
};
constexpr TileConfig kConfigs16[] = {
    // dims    extras | warps row tiles n stages | Q in registers | blocks
    {64, 64, kBands, 4, 2, 48, 2, false, 3},   {64, 64, kBands, 4, 2, 64, 2, true, 2},
    {64, 64, kAll, 4, 1, 64, 2, true, 2},      {128, 128, kPlain, 4, 2, 64, 2, false, 2},
    {128, 128, kBands, 4, 2, 48, 2, false, 2}, {128, 128, kBands, 4, 2, 32, 1, false, 2},
    {128, 128, kAll, 4, 1, 32, 2, false, 2},   {192, 128, kBands, 4, 2, 48, 1, false, 2},
    {256, 256, kBands, 4, 1, 64, 1, false, 2}, {256, 256, kBands, 8, 1, 64, 1, false, 1},
    {256, 256, kBands, 8, 1, 32, 1, false, 1}, {256, 256, kAll, 4, 1, 32, 1, false, 2},
    {256, 256, kAll, 4, 1, 16, 1, false, 2},
};
constexpr TileConfig kConfigs32[] = {
    // dims     extras | warps row tiles n stages | Q in registers | blocks
    {64, 64, kBands, 4, 2, 32, 2, false, 2},   {64, 64, kBands, 4, 2, 32, 1, false, 2},
    {64, 64, kAll, 4, 1, 32, 2, false, 2},     {128, 128, kBands, 4, 2, 16, 2, false, 2},
    {128, 128, kBands, 8, 1, 16, 2, false, 1}, {128, 128, kAll, 4, 1, 16, 2, false, 2},
    {128, 128, kAll, 4, 1, 16, 2, false, 1},   {256, 256, kAll, 4, 1, 16, 1, false, 2},
    {256, 256, kBands, 8, 1, 16, 1, false, 1}, {256, 256, kAll, 4, 1, 16, 1, false, 1},
};
constexpr int kReserved = 1024;  // bytes of shared memory that each block of threads takes for itself

// The largest power of two, up to 16, that every given number of bytes is a multiple of.
int common_alignment(std::initializer_list<std::int64_t> bytes) {
  std::int64_t bits = 16;
  for (const std::int64_t b : bytes) bits |= b;
  return static_cast<int>(bits & -bits);
}
int alignment_of(const Dims& stride, DType dtype, const void* data) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return common_alignment({stride[0] * size, stride[1] * size, stride[2] * size,
                           static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data) % 16)});
}

// How the tensors may be read and written; `a` without data: as far as strides go.
void set_alignment(const Problem& p, const Arguments& a, ForwardConfig& c) {
  c.copy_bytes = std::min({alignment_of(p.layout.q, p.dtype, a.q.data), alignment_of(p.layout.k, p.dtype, a.k.data),
                           alignment_of(p.layout.v, p.dtype, a.v.data)});
  const std::int64_t row = p.dim_v * static_cast<std::int64_t>(size_of(p.dtype));
  c.staged = p.out_dtype == p.dtype && row % 16 == 0 && alignment_of(p.layout.out, p.out_dtype, a.out.data) == 16;
}

Extras extras_of(const AttentionFeatures& f, const ForwardConfig& c) {
  AttentionFeatures dense = f;
  dense.packed = false;
  if (!dense.plain() || c.copy_bytes < 16) return kAll;
  return f.packed || (f.bounded_left && f.bounded_right) ? kBands : kPlain;
}

cuda::TileShape tile_shape_of(const ForwardConfig& c) { return {c.block_m(), c.block_n, c.block_m() / 16}; }

std::string why_not(const Problem& p) {
  ForwardConfig config;
  std::string why;
  return config_for(p, config, why) ? std::string() : why;
}

std::string describe(const Problem& p) {
  ForwardConfig c;
  std::string why;
  if (!config_for(p, c, why)) return why;
  return text(c.block_m(), " x ", c.block_n, " tiles, ", c.warps, " warps of ", 16 * c.row_tiles, " rows, ", c.stages,
              c.stages == 1 ? " K/V stage, " : " K/V stages, ", c.q_registers ? "Q in registers, " : "", c.copy_bytes,
              "-byte copies, ", layout_of(cuda::features_of(p), c).total, " bytes of shared memory");
}

std::size_t workspace_bytes(const Problem& p, int) {
  ForwardConfig c;
  std::string why;
  return config_for(p, c, why) ? cuda::forward_workspace_bytes(p, tile_shape_of(c)) : 0;
}

std::string arch_of(const cuda::DeviceFacts& device) { return text("sm_", device.major, device.minor); }

void run(const Problem& p, const Arguments& a, void* workspace, Executor&, void* stream_) {
  ForwardConfig c;
  std::string why;
  if (!config_for(p, c, why)) throw Error(ErrorCode::unsupported, why);
  if (cuda::tile_bound(p, tile_shape_of(c)) == 0) return;
  set_alignment(p, a, c);
  const auto stream = static_cast<cuda::Stream>(stream_);
  const cuda::DeviceFacts& device = cuda::device_facts(p.device.index);
  const ForwardFeatures f = cuda::features_of(p);
  const int shared = layout_of(f, c).total;
  static cuda::KernelTable<std::tuple<ForwardFeatures, ForwardConfig, std::string>> kernels;
  const cuda::Kernel& kernel = kernels.find(device.ordinal, {f, c, cuda::mods_key(p)}, shared, stream,
                                            [&] { return program_of(f, c, arch_of(device), cuda::mods_source(p)); });
  const cuda::ContextScope scope(device);
  ForwardParams params = cuda::params_of(p, a, tile_shape_of(c), workspace, device, stream);
  void* arguments[] = {&params};
  cuda::launch(kernel, static_cast<unsigned>(std::min(params.tiles, c.blocks * device.multiprocessors)),
               static_cast<unsigned>(c.threads()), shared, stream, arguments);
}

}  // namespace

bool config_for(const Problem& p, ForwardConfig& c, std::string& why) {
  const cuda::DeviceFacts* const d = cuda::device_of(p, why);
  if (d && d->major < 8)
    why = text("it is written for compute capability 8.0 and later; ", d->name, " has ", d->major, ".", d->minor);
  return d && d->major >= 8 && select_config(p, d->shared_bytes, c, why);
}

bool select_config(const Problem& p, int shared_bytes, ForwardConfig& c, std::string& why) {
  const auto refuse = [&](std::string sentence) {
    why = std::move(sentence);
    return false;
  };
  const ForwardFeatures features = cuda::features_of(p);
  const AttentionFeatures& f = features.attention;
  const auto fits = [&](const TileConfig& s) {
    c = {.warps = s.warps,
         .row_tiles = s.row_tiles,
         .block_n = s.block_n,
         .stages = s.stages,
         .q_registers = s.q_registers,
         .column_groups = f.dim_v <= s.column_groups,
         .blocks = s.blocks,
         .copy_bytes = 16,
         .staged = true};
    set_alignment(p, {}, c);
    return f.dim_qk <= s.dim_qk && f.dim_v <= s.dim_v && extras_of(f, c) <= s.extras &&
           s.blocks * (layout_of(features, c).total + kReserved) <= shared_bytes + kReserved;
  };
  if (p.dim_qk > 256 || p.dim_v > 256)
    return refuse(text("head dims up to 256 fit its registers; they are ", p.dim_qk, "/", p.dim_v));
  if (p.dtype == DType::f32 ? std::ranges::none_of(kConfigs32, fits) : std::ranges::none_of(kConfigs16, fits))
    return refuse(text("none of its configs for head dims ", p.dim_qk, "/", p.dim_v, " fits ", shared_bytes,
                       " bytes of shared memory"));

  constexpr std::int64_t kMax = cuda::kMaxPosition;
  for (const auto& [name, count] : {std::pair{"seq_q", p.seq_q}, std::pair{"seq_k", p.seq_k},
                                    std::pair{"the tokens of q", p.total_q}, std::pair{"the tokens of k", p.total_k},
                                    std::pair{"the batch", p.batch}, std::pair{"the heads of q", p.heads_q}}) {
    if (count > kMax) return refuse(text("it counts in 32 bits, up to ", kMax, "; ", name, " are ", count));
  }
  if (p.batch * p.heads_q > kMax || cuda::tile_bound(p, tile_shape_of(c)) > kMax / (c.block_m() / 16))
    return refuse(text("it counts in 32 bits; ", p.batch, " x ", p.heads_q, " heads have too many tiles of ",
                       c.block_m(), " rows"));
  if (std::string sentence = why_no_alibi(p, kMax); !sentence.empty()) return refuse(std::move(sentence));
  return true;
}

namespace {

// The bindings name every field: one that is added and not printed does not compile.
std::string config_source(const ForwardConfig& c) {
  const auto& [warps, row_tiles, block_n, stages, q_registers, column_groups, blocks, copy_bytes, staged] = c;
  return cuda::Initializer()
      .field("warps", warps)
      .field("row_tiles", row_tiles)
      .field("block_n", block_n)
      .field("stages", stages)
      .field("q_registers", q_registers)
      .field("column_groups", column_groups)
      .field("blocks", blocks)
      .field("copy_bytes", copy_bytes)
      .field("staged", staged)
      .source();
}

}  // namespace

cuda::KernelProgram program_of(const ForwardFeatures& f, const ForwardConfig& c, const std::string& arch,
                               const std::string& mods) {
  return {"cuda/sm80/forward.cuh", "attention_forward",
          text(cuda::features_source(f), "#include \"cuda/sm80/forward_config.hpp\"\n",
               "namespace onepass::sm80 { constexpr ForwardConfig config = ", config_source(c), "; }\n",
               "#include \"cuda/sm80/products_", f.attention.input == ScalarType::f32 ? "f32" : "16", ".cuh\"\n"),
          arch, mods};
}

const Implementation& forward_implementation() {
  static const Implementation row{"cuda.sm80", why_not, describe, workspace_bytes, run};
  return row;
}

}  // namespace onepass::sm80
