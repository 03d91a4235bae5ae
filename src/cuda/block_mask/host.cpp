#include "cuda/block_mask/host.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/host/kernel_state.hpp"
#include "expression/tokens.hpp"
#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

using interval::Bounds;

// A mask_mod alone, so that calls that differ in anything else have one kernel.
Problem alone(std::string mask_mod, std::vector<ModBuffer> buffers) {
  Problem p;
  p.mask_mod = std::move(mask_mod);
  p.mod_buffers = std::move(buffers);
  return p;
}
KernelProgram level_program(const std::string& arch) {
  return {"cuda/block_mask/levels.cuh", "buffer_levels", features_source(features_of(Problem{})), arch};
}
KernelProgram tile_program(const Problem& mask, const std::string& arch) {
  return {"cuda/block_mask/tiles.cuh", "mask_tiles", features_source(features_of(mask)), arch,
          mods_source(mask) + mask_bounds_source(mask)};
}

bool has_word(std::string_view mask_mod, std::string_view word) {
  Tokens tokens("mask_mod", mask_mod);
  do tokens.next();
  while (!tokens.token().empty() && tokens.token() != word);
  return !tokens.token().empty();
}

BufferType type_of(DType t) {
  switch (t) {
    case DType::f16: return BufferType::f16;
    case DType::bf16: return BufferType::bf16;
    case DType::i32: return BufferType::i32;
    case DType::boolean: return BufferType::boolean;
    default: return BufferType::f32;
  }
}

// Levels take 3 bytes for an element of a buffer, and the states 4 for a tile. A buffer of few rows has levels at any
// length, because ranges of it may be long.
constexpr double kMostElements = 1 << 21;
bool has_groups(std::int64_t rows, std::int64_t elements, const BlockMaskShape& s) {
  double tiles = 1;  // beyond int64 for sizes that fit alone
  for (const std::int64_t n : {s.batch, s.heads, s.row_tiles(), s.key_tiles()}) tiles *= static_cast<double>(n);
  return rows <= interval::kMostRows || static_cast<double>(elements) <= std::max(kMostElements, tiles);
}
struct LevelSizes {
  std::int64_t rows, length, groups;  // groups: of all levels and rows; 0: there are none
  std::int64_t bounds() const { return 1 + std::max(groups, rows); }
};
LevelSizes sizes_of(const ConstTensor& t, const BlockMaskShape& s) {
  const std::int64_t length = t.shape[static_cast<std::size_t>(t.rank - 1)], rows = t.elements() / length;
  return {rows, length, has_groups(rows, t.elements(), s) ? rows * interval::groups_on_all_levels(length) : 0};
}

}  // namespace

std::vector<KernelProgram> block_mask_programs(const Problem& p, const std::string& arch) {
  if (p.mask_mod.empty()) return {};
  std::vector<ModBuffer> buffers;  // without those of a score_mod, which the mask is not built with
  std::ranges::copy_if(p.mod_buffers, std::back_inserter(buffers),
                       [&](const ModBuffer& b) { return has_word(p.mask_mod, b.name); });
  std::vector<KernelProgram> programs;
  if (!buffers.empty()) programs.push_back(level_program(arch));
  programs.push_back(tile_program(alone(p.mask_mod, std::move(buffers)), arch));
  return programs;
}

std::size_t level_bytes(const std::vector<NamedTensor>& buffers, const BlockMaskShape& shape) {
  std::size_t bounds = 0;
  for (const NamedTensor& b : buffers) bounds += static_cast<std::size_t>(sizes_of(b.tensor, shape).bounds());
  return bounds * sizeof(Bounds);
}

LevelParams level_params(const BlockMaskCall& call, void* memory) {
  LevelParams p{};
  ModBufferView views[std::size(p.buffers)] = {};
  Tensors given;
  given.mod_buffers = call.buffers;
  fill_mod_buffers(given, views);
  auto* next = static_cast<Bounds*>(memory);
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    const ConstTensor& t = call.buffers[i].tensor;
    const LevelSizes sizes = sizes_of(t, call.shape);
    BufferLevels& b = p.buffers[i];
    b.view = views[i];
    b.rank = t.rank;
    b.type = type_of(t.dtype);
    b.rows = sizes.rows, b.length = sizes.length;
    b.all = next++;
    b.groups = sizes.groups > 0 ? next : nullptr;
    b.row_bounds = sizes.groups > 0 ? next + (sizes.groups - sizes.rows) : next;
    next += sizes.bounds() - 1;
  }
  return p;
}

BlockMaskParams block_mask_params(const BlockMaskCall& call, const LevelParams& levels) {
  const BlockMaskShape& s = call.shape;
  BlockMaskParams p{};
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    const BufferLevels& b = levels.buffers[i];
    p.buffers[i] = b.view;
    p.levels[i] = {b.groups, b.all, b.rows, b.length, kMostOfRange};
  }
  p.states = static_cast<int*>(call.states.data);
  std::copy_n(call.states.stride.begin(), 4, p.stride);
  p.rows = static_cast<int>(s.seq_q), p.keys = static_cast<int>(s.seq_k);
  p.tile_q = static_cast<int>(s.tile_q), p.tile_k = static_cast<int>(s.tile_k);
  p.heads = static_cast<int>(s.heads);
  p.row_tiles = static_cast<int>(s.row_tiles()), p.key_tiles = static_cast<int>(s.key_tiles());
  p.strips = static_cast<int>(ceil_div(s.key_tiles(), 32));
  p.units = s.batch * s.heads * s.row_tiles() * p.strips;
  p.exact = call.exact;
  return p;
}

void block_mask_states(const BlockMaskText& mask, const BlockMaskCall& call, void* memory, void* on) {
  const DeviceFacts& device = device_facts(call.states.device.index);
  if (device.major < 8) throw Error(ErrorCode::unsupported, "a block mask on a device " + why_too_old(device));
  const auto stream = static_cast<Stream>(on);
  if (call.states.elements() == 0) return;
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  for (const auto& [name, t] : call.buffers)
    want(std::ranges::all_of(t.shape, [](std::int64_t size) { return size <= kMost; }), ErrorCode::unsupported,
         "a block mask on a device does not support the mod buffer ", name, " ", shape_text(t), ", beyond ", kMost,
         " elements of a dimension");
  const std::string arch = arch_of(device);
  const Problem problem = alone(mask.text, mask.buffers);
  static KernelTable<int> level_kernels;
  static KernelTable<std::string> tile_kernels;
  const ContextScope scope(device);
  const auto start = [&](const Kernel& kernel, std::int64_t blocks, int shared_bytes, auto& params) {
    void* parameters[] = {&params};
    const std::int64_t most = std::int64_t{8} * device.multiprocessors;
    launch(kernel, static_cast<unsigned>(std::min(blocks, most)), kBlockMaskThreads, shared_bytes, stream, parameters);
  };
  const Kernel& tile_kernel =
      tile_kernels.find(device.ordinal, mods_key(problem), 0, stream, [&] { return tile_program(problem, arch); });
  LevelParams levels = level_params(call, memory);
  if (!call.buffers.empty()) {
    const Kernel& kernel =
        level_kernels.find(device.ordinal, 0, kLevelBytes, stream, [&] { return level_program(arch); });
    launch_levels(call, levels, [&](LevelParams& params) { start(kernel, params.units, kLevelBytes, params); });
  }
  BlockMaskParams tiles = block_mask_params(call, levels);
  start(tile_kernel, ceil_div(tiles.units, kBlockMaskThreads / 32), 0, tiles);
}

}  // namespace onepass::cuda
