// The tests' view of the packed mask's device source. Structures of the library travel as pointers: the text has its
// own, of the same layout.
#pragma once
#include <utility>
#include <vector>

namespace warps {

struct MaskCase {
  int batch, heads, seq_q, seq_k, left, right;  // left, right: -1 is unbounded
  const void* bits;                             // MaskBits
};
struct Walk {  // a tile of 128 rows and the blocks of 64 keys that a kernel visits, in its order
  int row = -1, head = 0, batch = 0;
  std::vector<int> blocks;
};

void pack(const void* params);              // MaskPackParams
Walk walk_of(const MaskCase& c, int tile);  // no blocks: the tile sees no key
// For each block of the walk [16][64]: which scores a warp keeps whose first row is `first_row`.
std::vector<std::vector<char>> visible(const MaskCase& c, const Walk& walk, int first_row);

// [16][64]: which of a warp's weights dropout keeps; its first row and key.
std::vector<char> kept(float p, unsigned long long seed, unsigned batch, unsigned head, unsigned row, unsigned key);

std::pair<float, float> tanh_of_pair(float x, float y);

}  // namespace warps
