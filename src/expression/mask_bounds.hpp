// The state of a tile of rows and keys under a mask_mod, without looking at its elements: interval arithmetic
// (interval.hpp) over the steps of its expression.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "algebra/mask.hpp"
#include "expression/expression.hpp"
#include "expression/interval.hpp"
#include "onepass/attention.hpp"

namespace onepass {

// The least and the largest element of any run of a buffer's last dimension (interval::Levels).
class BufferBounds {
 public:
  // A buffer of more than `most` elements is read when it is asked for, if the range is small.
  BufferBounds(const ConstTensor& tensor, std::int64_t most);
  // at: bounds of the index in each dimension.
  interval::Bounds of(const interval::Bounds* at) const;

 private:
  static constexpr std::int64_t kMostRead = 1024;  // elements of a range of a buffer that was not read before

  ConstTensor tensor_;
  std::int64_t rows_ = 1, length_ = 1;
  interval::Bounds all_{};
  std::vector<interval::Bounds> groups_;  // of all levels; none: all_ alone is known
};

// Bounds of positions, both ends included.
struct MaskBox {
  std::int64_t batch_lo, batch_hi, head_lo, head_hi, row_lo, row_hi, key_lo, key_hi;
};

// A call's mask_mod. Many threads may ask at a time.
class MaskBounds {
 public:
  // most: of buffers of more elements no levels are made, which would take longer than the rest of a call.
  MaskBounds(const Expression& mask, std::span<const NamedTensor> buffers, std::int64_t most);

  // skip: the mask hides every element of the box. full: it hides none. partial: neither is known.
  Tile classify(const MaskBox& box) const;
  // The states of the box's tiles of `rows` x `keys`, from coarse to fine; from a row of tiles to the next: `stride`.
  void classify_tiles(const MaskBox& box, std::int64_t rows, std::int64_t keys, Tile* tiles, std::int64_t stride) const;

 private:
  interval::Bounds step(const ExprStep& step, const MaskBox& box, const interval::Bounds* values) const;

  const Expression& mask_;
  std::vector<BufferBounds> buffers_;
};

}  // namespace onepass
