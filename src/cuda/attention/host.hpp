// The host half that the architectures share: a problem's features and a call's parameters.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "core/implementation.hpp"
#include "cuda/attention/forward.hpp"
#include "cuda/host/kernels.hpp"

namespace onepass::cuda {

// Of sequences, counts and a band's offset: kernels add up three of them in an int.
constexpr std::int64_t kMaxPosition = std::numeric_limits<int>::max() / 4;

// How a kernel tiles the work: query rows and keys of a tile, and how many sixteen-row warps share a tile.
struct TileShape {
  int block_m, block_n, warps;
};

// The problem's device; nullptr with a sentence if it is not on one that is there.
const DeviceFacts* device_of(const Problem& problem, std::string& why);
// Throws Error (bad_dtype) for a dtype that no kernel computes on.
ForwardFeatures features_of(const Problem& problem);
// What stands in front of the kernel's source: #include of the definitions, `constexpr ForwardFeatures
// forward_features` and `constexpr AttentionFeatures features`.
std::string features_source(const ForwardFeatures& features);

// An upper bound if packed: the kernel counts from the lengths, which only the device knows.
std::int64_t tile_bound(const Problem& problem, const TileShape& tile);
std::size_t forward_workspace_bytes(const Problem& problem, const TileShape& tile);

// What a call's parameters are without a device: all but the tile counters and the packed mask, whose place in the
// workspace is mask_place.
ForwardParams params_without_device(const Problem& problem, const Arguments& arguments, const TileShape& tile,
                                    void* workspace, int l2_bytes);
void* mask_place(const Problem& problem, const TileShape& tile, void* workspace);
// `workspace`: forward_workspace_bytes bytes. The tile counters and the packed mask are ready when
// the stream gets there.
ForwardParams params_of(const Problem& problem, const Arguments& arguments, const TileShape& tile, void* workspace,
                        const DeviceFacts& device, Stream stream);

}  // namespace onepass::cuda
