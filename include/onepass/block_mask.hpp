// Which tiles of the matrix of rows and keys a mask leaves: empty tiles cost nothing, full ones need no mask.
//
//   onepass::BlockMask m = onepass::block_mask("doc[q_index] == doc[k_index]", {{"doc", documents}},
//                                              {.seq_q = 131072, .seq_k = 131072});
//   m.sparsity();                        // the share of tiles that are empty
//   m.full.of(m.list(0, 0, row_tile));   // the tiles of keys that row tile sees whole
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "onepass/export.h"
#include "onepass/launch.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

// batch and heads are 1 where all share one mask, which is then that of entry 0 or head 0.
struct BlockMaskShape {
  std::int64_t batch = 1, heads = 1, seq_q = 0, seq_k = 0;
  std::int64_t tile_q = 128, tile_k = 128;  // rows and keys of a tile; the last ones may be smaller
  std::int64_t row_tiles() const { return (seq_q + tile_q - 1) / tile_q; }
  std::int64_t key_tiles() const { return (seq_k + tile_k - 1) / tile_k; }
  friend bool operator==(const BlockMaskShape&, const BlockMaskShape&) = default;
};

// List i is tiles[begin[i]] to tiles[begin[i + 1] - 1], ascending.
struct TileLists {
  std::vector<std::int64_t> begin{0};
  std::vector<std::int32_t> tiles;
  std::int64_t count() const { return static_cast<std::int64_t>(tiles.size()); }
  std::span<const std::int32_t> of(std::int64_t list) const {
    const auto at = static_cast<std::size_t>(list);
    return std::span(tiles).subspan(static_cast<std::size_t>(begin[at]),
                                    static_cast<std::size_t>(begin[at + 1] - begin[at]));
  }
  friend bool operator==(const TileLists&, const TileLists&) = default;
};

// Tiles in no list are empty. A mixed tile may have visible elements; a full one has no others.
struct BlockMask {
  BlockMaskShape shape;
  TileLists mixed, full;            // of each row tile: tiles of keys
  TileLists mixed_rows, full_rows;  // the same tiles by tiles of keys: tiles of rows

  std::int64_t list(std::int64_t batch, std::int64_t head, std::int64_t row_tile) const {
    return (batch * shape.heads + head) * shape.row_tiles() + row_tile;
  }
  std::int64_t list_of_rows(std::int64_t batch, std::int64_t head, std::int64_t key_tile) const {
    return (batch * shape.heads + head) * shape.key_tiles() + key_tile;
  }
  std::int64_t tiles() const { return shape.batch * shape.heads * shape.row_tiles() * shape.key_tiles(); }
  double sparsity() const {
    return tiles() == 0 ? 0.0 : 1.0 - static_cast<double>(mixed.count() + full.count()) / static_cast<double>(tiles());
  }
  // [batch][heads][row_tiles][key_tiles], as AttentionTensors::block_mask has them: 0 empty, 1 mixed, 2 full. A call of
  // tiles other than 128 x 128 says so: Attention::mask_tile_q and mask_tile_k.
  std::vector<std::int32_t> states() const {
    std::vector<std::int32_t> all(static_cast<std::size_t>(tiles()));
    std::int32_t state = 0;
    for (const TileLists* lists : {&mixed, &full}) {
      ++state;
      for (std::int64_t i = 0; i + 1 < static_cast<std::int64_t>(lists->begin.size()); ++i)
        for (const std::int32_t tile : lists->of(i))
          all[static_cast<std::size_t>(i * shape.key_tiles() + tile)] = state;
    }
    return all;
  }
  friend bool operator==(const BlockMask&, const BlockMask&) = default;
};

// The tiles of a mask_mod (docs/features/score_mod.md) and its buffers, in CPU memory, by interval arithmetic: elements
// are not looked at, and a tile for which bounds do not decide is mixed. exact: elements of such tiles are looked at,
// so that mixed tiles have visible and hidden elements. Throws Error for a text that cannot be read.
[[nodiscard]] ONEPASS_API BlockMask block_mask(std::string_view mask_mod, const std::vector<NamedTensor>& mod_buffers,
                                               const BlockMaskShape& shape, bool exact = false);

// The states of the same tiles, written into `states` on its device, where the buffers are, too: int32 [batch, heads,
// row_tiles, key_tiles] of any strides, as AttentionTensors::block_mask has them. On CUDA the work is put on the stream
// and nothing is waited for; it can be captured once a call with this mask_mod has loaded the kernels. There `exact`
// evaluates elements in the device's arithmetic. Without a workspace, memory is allocated in stream order.
ONEPASS_API void block_mask_states(std::string_view mask_mod, const std::vector<NamedTensor>& mod_buffers,
                                   const BlockMaskShape& shape, const Tensor& states, bool exact = false,
                                   const Launch& launch = {});
// The bytes of its workspace; 0 for buffers in CPU memory.
[[nodiscard]] ONEPASS_API std::size_t block_mask_workspace_bytes(const std::vector<NamedTensor>& mod_buffers,
                                                                 const BlockMaskShape& shape);

// The tiles of a boolean mask [batch, heads, seq_q, seq_k] in CPU memory, true = visible; dimensions in front may be
// left out.
[[nodiscard]] ONEPASS_API BlockMask block_mask(const ConstTensor& bool_mask, std::int64_t tile_q = 128,
                                               std::int64_t tile_k = 128);

// The tiles in the caller's own lists, which are checked: each ascends, within the tiles of keys, and no tile is in
// both.
[[nodiscard]] ONEPASS_API BlockMask block_mask(const BlockMaskShape& shape, TileLists mixed, TileLists full);

}  // namespace onepass::inline v0
