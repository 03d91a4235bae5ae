// The host half that the architectures share: a problem's features and a call's parameters.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "cuda/attention/forward.hpp"
#include "cuda/host/kernel_state.hpp"
#include "problem/implementation.hpp"

namespace onepass::cuda {

// The limit of lengths, counts and a band's offset: kernels add up three of them in an int.
constexpr std::int64_t kMaxPosition = std::numeric_limits<int>::max() / 4;

// How a kernel tiles the work: query rows and keys of a tile, and how many sixteen-row warps share a tile.
struct TileShape {
  int block_m, block_n, warps;
};

// A kernel's part of a call, where sequences with few rows and those with many have a kernel each (cuda/mixed).
struct Part {
  int least_rows = 0, most_rows = 0;  // of its sequences; most_rows 0: no limit
  bool concurrent = false;            // the parts run at the same time
  bool early = false;                 // it starts as soon as the part in front has started
};

// The largest power of two, up to 16, that a tensor's address and the distances of its rows in bytes are multiples of.
int row_alignment(const Problem& problem, Role role);
// Empty, or a sentence on a count that 32 bits do not hold. tiles: of all heads, where they are counted so.
std::string why_too_many(const Problem& problem, std::int64_t tiles = 0);
// Empty, or a sentence on entropies that the kernels of many rows leave to cuda.plain.
std::string why_no_entropy(const Problem& problem);
// why_too_many, or a sentence on entropies, for kernels without them.
std::string why_elsewhere(const Problem& problem, std::int64_t tiles = 0);
// Throw Error (bad_dtype) for a dtype that no kernel computes on.
ScalarType scalar_type_of(DType dtype);
ForwardFeatures features_of(const Problem& problem);
// For describe() of kernels on tensor cores.
const char* precision_of(const Problem& problem);
// The text in front of the kernel's source: the #include of the definitions, `constexpr ForwardFeatures
// forward_features` and `constexpr AttentionFeatures features`.
std::string features_source(const ForwardFeatures& features);

// An upper bound if packed: the kernel counts from the lengths, which only the device knows.
std::int64_t tile_bound(const Problem& problem, const TileShape& tile);
std::size_t forward_workspace_bytes(const Problem& problem, const TileShape& tile);

// The strides of batch (or page), head and token.
inline void fill_strides(long long (&to)[3], const Dims& from) { std::copy_n(from.begin(), 3, to); }

// A launch's parameters but for what a call brings: addresses, the tile counters and the packed mask, whose place in
// the workspace is at mask_place.
ForwardParams decided_params(const Problem& problem, const TileShape& tile, int l2_bytes, const Part& part = {});
// The addresses of a call. `workspace`: forward_workspace_bytes bytes.
void bind(ForwardParams& params, const Tensors& tensors, void* workspace);
// The same of a kernel that computes entropies.
EntropyParams decided_forward(const Problem& problem, const TileShape& tile, int l2_bytes, const Part& part = {});
void bind(EntropyParams& params, const Tensors& tensors, void* workspace);
std::size_t mask_place(const Problem& problem, const TileShape& tile);

// Two tile counters of a call: those of its stream, in a capture those of its workspace, else zeroed ones where its
// workspace begins, kTileCounterBytes bytes.
unsigned* tile_counters(const Call& call);
inline constexpr std::size_t kTileCounterBytes = 64;

}  // namespace onepass::cuda
