#include "cuda/attention/scores/mask_host.hpp"
#include "base/text.hpp"

#include <algorithm>

#include "onepass/error.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::cuda {
namespace {

// Keys of a tile of the packed mask: of a block of the kernel, or of the two that share a word.
int mask_block(const TileShape& tile) { return std::max(tile.block_n, 32); }

std::int64_t up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to; }

struct PackedShape {  // of the packed mask; dimensions that repeat have size 1
  std::int64_t batch, heads, rows, words, tile_rows;
  std::int64_t bits_words() const { return batch * heads * rows * words; }
  std::int64_t tile_bytes() const { return batch * heads * tile_rows * words; }
  std::int64_t fragment_words() const { return tile_bytes() * 64; }
};

PackedShape packed_shape_of(const Problem& p, const TileShape& tile) {
  const BroadcastDims& s = *p.bool_mask;
  const std::int64_t rows = s.rows ? p.seq_q : 1;
  // Whole blocks of keys, rows of words aligned to 16 bytes.
  const std::int64_t words = up(up(p.seq_k, mask_block(tile)) * mask_block(tile) / 32, 4) * 4;
  return {s.batch ? p.batch : 1, s.heads ? p.heads_q : 1, rows, words, up(rows, 64)};
}

}  // namespace

KernelProgram mask_program(const std::string& arch) {
  return {"cuda/attention/scores/mask_bits.cuh", "pack_mask", "", arch, "", ""};
}

std::size_t mask_bytes(const Problem& p, const TileShape& tile, bool fragments) {
  if (!p.bool_mask) return 0;
  const PackedShape s = packed_shape_of(p, tile);
  return static_cast<std::size_t>(s.bits_words() * 4 + s.tile_bytes() + (fragments ? s.fragment_words() * 4 : 0));
}

MaskPlan plan_mask(const Problem& p, const void* mask, const TileShape& tile, void* workspace, bool fragments) {
  const PackedShape s = packed_shape_of(p, tile);
  const Dims& stride = p.layout.bool_mask;
  MaskPlan out{};
  MaskPackParams& k = out.pack;
  k.mask = static_cast<const unsigned char*>(mask);
  std::copy(stride.begin(), stride.end(), k.stride);
  k.heads = static_cast<int>(s.heads);
  k.rows = static_cast<int>(s.rows);
  k.keys = static_cast<int>(p.seq_k);
  k.block_m = tile.block_m;
  k.block_n = mask_block(tile);
  k.m_tiles = static_cast<int>(up(s.rows, tile.block_m));
  // Tiles of one word: the padding's too, so that those of a backward pass's block of keys are read at once.
  k.n_blocks = static_cast<int>(k.block_n == 32 ? s.words : up(p.seq_k, k.block_n));
  k.units = s.batch * s.heads * k.m_tiles * k.n_blocks;
  k.bits = static_cast<unsigned*>(workspace);
  k.fragments.words = fragments ? k.bits + s.bits_words() : nullptr;
  k.tiles = reinterpret_cast<unsigned char*>(k.bits + s.bits_words() + (fragments ? s.fragment_words() : 0));
  out.bits.bits = k.bits;
  out.bits.tiles = k.tiles;
  const BroadcastDims& spans = *p.bool_mask;
  const long long bits[3] = {s.heads * s.rows * s.words, s.rows * s.words, s.words},
                  tiles[3] = {s.heads * s.tile_rows * s.words, s.tile_rows * s.words, s.words};
  const bool spanned[3] = {spans.batch, spans.heads, spans.rows};
  for (int i = 0; i < 3; ++i) {
    out.bits.bits_stride[i] = k.bits_stride[i] = spanned[i] ? bits[i] : 0;
    out.bits.tile_stride[i] = k.tile_stride[i] = spanned[i] ? tiles[i] : 0;
    k.fragments.stride[i] = k.tile_stride[i] * 64;
  }
  return out;
}

const Kernel& load_mask_kernel(const DeviceFacts& device, Stream stream) {
  static KernelTable<int> kernels;
  return kernels.find(device.ordinal, 0, 0, stream, [&] { return mask_program(arch_of(device)); });
}

MaskPlan pack_mask(const Problem& p, const Tensors& a, const TileShape& tile, void* workspace,
                   const DeviceFacts& device, Stream stream, bool fragments) {
  MaskPlan plan = plan_mask(p, a.bool_mask.data, tile, workspace, fragments);
  if (plan.pack.units == 0) return plan;
  const Kernel& kernel = load_mask_kernel(device, stream);
  void* arguments[] = {&plan.pack};
  launch(kernel, static_cast<unsigned>(std::min<long long>(plan.pack.units, 8 * device.multiprocessors)), 256, 0,
         stream, arguments);
  return plan;
}

}  // namespace onepass::cuda
