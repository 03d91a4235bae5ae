// The forward kernel family cpu.flash.*: what its host half (flash.cpp) and its kernels (one set per instruction set,
// kernels.cpp) tell each other. src/cpu/README.md holds the schedule and the measurements.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "algebra/ceil_div.hpp"
#include "algebra/numerics.hpp"
#include "algebra/philox.hpp"
#include "algebra/split.hpp"
#include "base/workspace.hpp"
#include "cpu/common/combine.hpp"
#include "expression/eval.hpp"
#include "expression/mask_bounds.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/implementation.hpp"

namespace onepass::cpu::flash {

// Rows of a K/V head = (query token, head of the GQA group), token-major, so one panel serves the whole group. A panel
// is `vecs` vectors of `lanes` rows; a register tile is a panel by `keys` keys (scores) or by `dims` columns of V
// (accumulate).
struct Geometry {
  int lanes, vecs, keys, dims;
  int block;   // keys per K/V block; a multiple of `keys` and of 32
  int panels;  // most panels per task
  int panel() const { return lanes * vecs; }
  constexpr int flag_words() const { return block / 32; }  // of a column: a bit for each key
};

// Where a block of K or V is read. packed: converted once per K/V head by the pack pass; block: converted by each task
// as it goes; in_place: fp32 rows of the tensor.
enum class Source { in_place, block, packed };

// Converted K: rows [key][dim_qk]. Converted V: per block of keys, column tiles [tile][key][dims], the last narrower.
// Packed V has zeros for elements that are not finite, and flags for them (nonfinite-inl.h).
struct Call {
  const Problem& problem;
  const Tensors& arguments;
  Geometry geometry;
  Source k_source, v_source;
  int panels;                 // per task
  KeySplits splits;           // of the keys
  Partials partials;          // where there are several
  std::int64_t seq_k = 0;     // of a slot: the call's longest
  float* packed_k = nullptr;  // [slot][seq_k][dim_qk] and [slot][seq_k][dim_v]: the heads of one wave
  float* packed_v = nullptr;
  std::uint8_t* packed_finite = nullptr;  // [slot][blocks]: 1 where a block of V is finite
  std::uint32_t* packed_flags = nullptr;  // [slot][blocks][flag words][dim_v], where a block is not finite
  Dropout dropout;
  const Mods& mods;
  std::int64_t join_every = 0;              // or keys after which a task joins its rows' states (common/one_result.hpp)
  const MaskBounds* mask_bounds = nullptr;  // of a mask_mod

  std::int64_t block_of(std::int64_t slot, std::int64_t key) const {
    return slot * ceil_div(seq_k, geometry.block) + key / geometry.block;
  }
  std::uint8_t& finite_of(std::int64_t slot, std::int64_t key) const { return packed_finite[block_of(slot, key)]; }
  std::uint32_t* flags_of(std::int64_t slot, std::int64_t key) const {
    return packed_flags + block_of(slot, key) * geometry.flag_words() * problem.dim_v;
  }
  float* k_of(std::int64_t slot) const { return packed_k + slot * seq_k * problem.dim_qk; }
  float* v_of(std::int64_t slot) const { return packed_v + slot * seq_k * problem.dim_v; }
};

// Rows [row_lo, row_hi) of one K/V head over one split of its keys.
struct Task {
  Sequence seq;
  std::int64_t batch, head_kv, slot;
  std::int64_t row_lo, row_hi, split;
};

// One worker's memory. rows: rounded up to whole vectors.
struct Scratch {
  float* q;       // [panels][dim_qk + 3][panel], transposed, in fp32
  float* out;     // [panels][dim_v + 3][panel], unnormalised and transposed
  float* scores;  // [block][panel], scores and then weights
  float *m, *l;   // [panels][panel]
  float* t;       // [panels][panel]: entropies' sums (algebra/entropy.hpp); nullptr without
  // The state (out, m, l, entropy) of the splits that are joined already; nullptr where tasks join none.
  float *joined_out, *joined_m, *joined_l, *joined_entropy;
  std::int32_t *lo, *hi;  // [panels][panel]: the keys visible to a lane
  float *k, *v;           // one converted block
  float *bias, *mask;     // [block + 3][panel]; nullptr without
  // Values of V that are not finite (nonfinite-inl.h): [panels][dim_v][panel], [flag words][dim_v] and
  // [flag words][panel].
  std::uint32_t *lost, *flags, *visible;
  ExprMemory<float> mods;
  Tile* tiles;  // [panels][tiles_of()]: how a mask_mod shows the blocks of a pass, from its first; nullptr without
};
// Tiles of a panel: one more than blocks of keys, because a pass begins anywhere.
inline std::int64_t tiles_of(const Problem& p, const Geometry& g) { return ceil_div(p.seq_k, g.block) + 1; }
// The states of blocks of keys from `first` to the one that holds end - 1, for `rows` rows of the task from `row` on.
void look_at_mask(const Call& call, const Task& task, std::int64_t row, std::int64_t rows, std::int64_t first,
                  std::int64_t end, Tile* tiles);
// The state of keys [first, end) alone; partial without a mask_mod.
Tile shown_of(const Call& call, const Task& task, std::int64_t row, std::int64_t rows, std::int64_t first,
              std::int64_t end);
Scratch book_scratch(Workspace& workspace, const Problem& problem, const Geometry& geometry, int panels);
Scratch book_tiles(Workspace& workspace, const Problem& problem, const Geometry& geometry, int panels);  // not q to l

// Calls f with a value of the storage type of out, a bias or the inputs of a backward.
template <class F>
decltype(auto) with_storage(DType dtype, F&& f) {
  switch (dtype) {
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    default: return f(float{});
  }
}

// The same for the storage type of q, k or v.
template <class F>
decltype(auto) with_input(DType dtype, F&& f) {
  return dtype == DType::f8e4m3 ? f(f8e4m3{}) : with_storage(dtype, std::forward<F>(f));
}

struct Kernels {
  const char* isa;
  std::int64_t target;  // Highway's bit
  Geometry geometry;
  // Converts keys [key_lo, key_hi) of a K/V head into its slot; key_lo is a multiple of the block.
  void (*pack)(const Call&, const Task&, std::int64_t key_lo, std::int64_t key_hi);
  void (*run)(const Call&, const Task&, const Scratch&);
};
std::span<const Kernels> kernels();  // of every compiled instruction set, best first

std::span<const Implementation> implementations();  // a row for each of them

}  // namespace onepass::cpu::flash
