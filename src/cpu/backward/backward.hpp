// The backward kernel family cpu.backward.*: what its host half (backward.cpp) and its kernels (one set per instruction
// set, kernels.cpp) tell each other. README.md holds the schedule and the measurements.
//
// Rows, panels, tiles and the score features are those of cpu.flash (src/cpu/flash/flash.hpp).
#pragma once
#include <cstdint>
#include <span>

#include "algebra/ceil_div.hpp"
#include "cpu/flash/flash.hpp"
#include "problem/implementation.hpp"

namespace onepass::cpu::backward {

// Where tasks put a gradient of the bias. A task alone owns its (row, key) pairs, so what spans both is added to in
// place; what is summed over the rows or over the keys has a partial sum per (batch, head) first.
enum class BiasSums { none, in_place, by_row, by_key };

// By shape alone. A task is a K/V head, a chunk of its keys and a chunk of its rows; it makes dK and dV of the keys and
// dQ of the rows, both final or one part of a sum in order.
struct Cut {
  int panels = 1;  // of a row block
  std::int64_t key_splits = 1, key_chunk = 0;
  std::int64_t row_splits = 1, row_chunk = 0;
};

// Rows [row_lo, row_hi) and keys [key_lo, key_hi) of one K/V head.
struct Task {
  Sequence seq;
  std::int64_t batch, head_kv;
  std::int64_t row_split, row_lo, row_hi;
  std::int64_t key_split, key_lo, key_hi;
};

struct Call {
  flash::Call forward;  // problem, arguments, sources, dropout, mods
  Cut cut;
  float scale;
  float* delta;                        // [rows]: rowsum(dO * O) - dLSE + dH H, 0 where a row sees no key
  float* dq = nullptr;                 // [key_splits][rows][dim_qk] where the keys are split
  float *dk = nullptr, *dv = nullptr;  // [row_splits][key rows][dim] where the rows are split
  BiasSums bias = BiasSums::none;
  float* dbias = nullptr;     // by_row: [key_splits][rows]; by_key: [row_splits][batch * heads_q][seq_k]
  double* dslopes = nullptr;  // [row_splits * key_splits][batch * heads_q]
  double* dsinks = nullptr;   // [batch * heads_q][row blocks of kStatRows]
  // With a mask_mod, 1 where a part was left: [key_splits][rows] of dQ; [row_splits][batch * heads_kv][key_splits] of
  // dK and dV, which no task that sees nothing writes.
  std::uint8_t *dq_seen = nullptr, *dkv_seen = nullptr;

  const Problem& problem() const { return forward.problem; }
  bool wants_ds() const;  // something besides dV
  std::int64_t dkv_part(const Task& task) const;
};
inline constexpr std::int64_t kStatRows = 256;

inline constexpr std::int64_t columns_of(std::int64_t dim) { return round_up(dim, 32); }

// Indices into the arrays of a call.
std::int64_t rows_of(const Problem& problem);      // of all heads: [batch][heads_q][seq_q], packed [heads_q][total_q]
std::int64_t key_rows_of(const Problem& problem);  // [batch][heads_kv][seq_k], packed [heads_kv][total_k]
std::int64_t key_row(const Problem& problem, const Sequence& seq, std::int64_t head_kv, std::int64_t key);

// Further memory for products on tiles (src/cpu/amx/kernels/backward-inl.h), all bf16, dims rounded up to 32: K both
// ways and V of a chunk, Q and dO both ways of a row block, weights and dX of a block of keys.
struct TileScratch {
  std::uint16_t *k, *v, *k_columns;
  std::uint32_t *q, *dout, *q_rows, *dout_rows;
  std::uint16_t *weights, *ds;  // [tile_parts][panels][block][panel]
  std::uint32_t* pairs;         // [tile_parts][vecs][block / 2][lanes]
  std::int8_t* groups;          // [panels][2 halves][from, to]
};
inline int tile_parts(const Problem& p) { return p.grad_dtype == DType::f32 ? 2 : 1; }

// One worker's memory.
struct Scratch {
  float *q, *dout, *dq;           // [panels][columns_of(dim)][panel], transposed
  float *q_rows, *dout_rows;      // [panels][column panels][row][panel]
  float *after, *before, *delta;  // [panels][panel]: of a lane's weights (the algebra's Step), and D
  float* dentropy = nullptr;      // [panels][panel]: the gradient dH of the entropy H; nullptr without
  float* ds;                      // [block][panel]
  // Flags of values that are not finite (nonfinite-inl.h): as q_rows, dout_rows, [panels][panel], k_tiles and ds. Those
  // of q and k are null where scores bring it to every pair.
  float *q_flags = nullptr, *dout_flags, *spoiled, *k_flags = nullptr, *visible;
  float* k_tiles;                                                      // a block of K in column tiles
  float *dk, *dv;                                                      // [column panels][key chunk][panel]
  float *cap_slope = nullptr, *mod_slope = nullptr, *pairs = nullptr;  // [block + 3][panel]; pairs: dS of the bias
  float *duals = nullptr, *dual_numbers = nullptr;  // pairs: a tile, and the values of a score_mod's steps
  double* slopes = nullptr;                         // [group]
  flash::Scratch flash;  // scores, a block of K and V, ranges, tiles of bias and mask, memory of mods
  TileScratch tiles{};
};

struct Kernels {
  const char* isa;
  std::int64_t target;  // Highway's bit
  flash::Geometry geometry;
  void (*stats)(const Call&, const Task&, std::int64_t head);  // delta and dsinks of the task's rows
  void (*run)(const Call&, const Task&, const Scratch&);
  // to[dim] = sum of `count` rows, `stride` apart, in their order; no row: 0.
  void (*sum)(const float* rows, std::int64_t stride, std::int64_t first, std::int64_t count, std::int64_t dim,
              DType dtype, void* to);
  bool tiles = false;  // needs TileScratch
};
std::span<const Kernels> kernels();  // of every compiled instruction set, best first

std::span<const Implementation> implementations();  // a row for each of them
Decision plan(const Request& request, const Kernels& kernels);

}  // namespace onepass::cpu::backward
