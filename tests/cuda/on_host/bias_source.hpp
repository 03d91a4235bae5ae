// The device source that reads a staged bias, run on the host.
#pragma once
#include <functional>
#include <vector>

namespace warps {

// A tile of 128 rows x 128 keys as TMA leaves it in shared memory: boxes of 128 bytes of columns, swizzled; value(row,
// key) goes in, what each fragment of the eight warps gets comes out [128][128].
using Values = std::function<float(int row, int key)>;
std::vector<float> staged_f32(const Values& value);
std::vector<float> staged_bf16(const Values& value);

}  // namespace warps
