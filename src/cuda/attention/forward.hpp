// What every forward kernel is compiled for and launched with, whatever its architecture: one definition for the host
// and the device half.
#pragma once
#include "core/mask.hpp"
#include "core/philox.hpp"
#include "cuda/attention/mask_bits.hpp"

namespace onepass {

enum class Type : int { none, f32, f16, bf16 };

// The part of a kernel's config that the problem alone decides. A feature that is off costs nothing: it is compiled
// out.
struct ForwardFeatures {
  int dim_qk, dim_v;
  Type input, output;
  bool bounded_left, bounded_right;  // the band; unbounded sides cost nothing
  bool packed;                       // variable length
  bool softcap, alibi, sinks, dropout, bool_mask;
  Type bias;
  bool score_mod, mask_mod;
  bool scaled_first;  // a scale that is negative, or 0 in fp32, cannot wait for the softmax
  bool pair_tanh;     // softcap to 4e-7 of the cap: where the cap is small and the weights have 16 bits

  ONEPASS_HD friend constexpr bool operator==(const ForwardFeatures&, const ForwardFeatures&) = default;
  ONEPASS_HD constexpr bool plain() const {  // Q K^T, band, P V and nothing else
    return !packed && !dropout && !transforms() && !hides();
  }
  ONEPASS_HD constexpr bool transforms() const {
    return softcap || alibi || bias != Type::none || score_mod || scaled_first;
  }
  ONEPASS_HD constexpr bool hides() const { return bool_mask || mask_mod; }  // beyond the band
};

ONEPASS_HD constexpr int padded(int n, int to) { return (n + to - 1) / to * to; }

struct RedoEntry {  // sixteen rows from `row` on, to be computed again; `before`: the warp's previous entry or -1
  int batch, head, row, before;
};

struct ModBufferView {  // a tensor that score_mod and mask_mod read
  const void* data;
  long long stride[4];
  int last[4];  // the largest index of each dimension
};

struct ForwardParams {
  const void *q, *k, *v;
  long long q_stride[3], k_stride[3], v_stride[3], out_stride[3];  // elements: batch, head, token
  void* out;
  float* lse;               // null: not wanted
  long long lse_stride[3];  // batch, head, token
  unsigned* counters;       // two, zero at the start and at the end: tiles taken, blocks done
  RedoEntry* redo;          // one for each warp of each tile
  const int *cu_q, *cu_k;   // packed only
  const void* bias;
  long long bias_stride[4];
  MaskBits mask;
  const float *slopes, *sinks;
  long long slope_stride[2], sink_stride;
  int batch, heads, heads_per_kv, seq_q, seq_k;
  int left, right;           // -1: unbounded
  int align_bottom, offset;  // shift = seq_k - seq_q, or the offset
  float scale, scale_log2;   // the latter: scale * log2(e)
  float cap_in, cap_out;     // softcap: s = cap_out * tanh(cap_in * dot)
  Dropout dropout;
  int batch_inner;                     // batch entries of a head follow each other: they read the same bias
  int m_tiles, heads_together, tiles;  // heads_together: heads worked on at once, for L2 locality
  ModBufferView mod_buffers[8];
};

}  // namespace onepass
