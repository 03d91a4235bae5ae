// The config and the parameters that all attention kernels share, forward and backward: scores, and the tiles of work.
// One definition for the host and the device half. forward.hpp and backward.hpp add the part of an operator.
#pragma once
#include "algebra/mask.hpp"
#include "algebra/philox.hpp"
#include "cuda/attention/scores/mask_bits.hpp"
#include "cuda/device/config.hpp"

namespace onepass {

// The part of a kernel's config that the problem alone decides. A feature that is off costs nothing: it is compiled
// out.
struct AttentionFeatures {
  int dim_qk, dim_v;
  ScalarType input, keys;            // of q; of k and v: the same, or e4m3
  bool bounded_left, bounded_right;  // the band; unbounded sides cost nothing
  bool packed;                       // variable length; k and v too unless they are a cache
  bool seqused, paged;               // k and v are a cache: lengths of its own, pages
  bool softcap, alibi, dropout, bool_mask;
  ScalarType bias;
  bool score_mod, mask_mod;
  bool scaled_first;  // a scale that is negative, or 0 in fp32, cannot wait for the softmax
  bool pair_tanh;     // softcap to 4e-7 of the cap: where the cap is small and the weights have 16 bits
  bool tree;          // of a forward: the last keys are drafts
  bool dropout_seed;  // the dropout's seed is in memory
  bool tf32;          // a product of fp32 is one of tf32 (Attention::precision), not three

  ONEPASS_FIELDS(AttentionFeatures, dim_qk, dim_v, input, keys, bounded_left, bounded_right, packed, seqused, paged,
                 softcap, alibi, dropout, bool_mask, bias, score_mod, mask_mod, scaled_first, pair_tanh, tree,
                 dropout_seed, tf32)
  ONEPASS_HD constexpr bool plain() const {  // Q K^T, band, P V and nothing else
    return !packed && !cache() && !dropout && !transforms() && !masks() && !tree;
  }
  ONEPASS_HD constexpr bool own_lengths() const { return packed || seqused; }  // of each sequence
  ONEPASS_HD constexpr bool cache() const { return seqused || paged; }
  ONEPASS_HD constexpr bool shared() const { return packed && cache(); }  // by kernels for few rows and for many
  ONEPASS_HD constexpr bool packed_k() const { return packed && !cache(); }
  ONEPASS_HD constexpr bool transforms() const {
    return softcap || alibi || bias != ScalarType::none || score_mod || scaled_first;
  }
  ONEPASS_HD constexpr bool masks() const { return bool_mask || mask_mod; }  // beyond the band
};

struct ModBufferView {  // a tensor that score_mod and mask_mod read
  const void* data;
  long long stride[4];
  int last[4];  // the largest index of each dimension
};

struct AttentionParams {
  const void *q, *k, *v;
  long long q_stride[3], k_stride[3], v_stride[3];  // elements: batch (or page), head, token
  const int *cu_q, *cu_k;                           // packed only
  int batch, heads, heads_per_kv, seq_q, seq_k;
  // Scores.
  int left, right;           // the band; -1: unbounded
  int align_bottom, offset;  // shift = seq_k - seq_q, or the offset
  float scale, scale_log2;   // the latter: scale * log2(e)
  float cap_in, cap_out;     // softcap: s = cap_out * tanh(cap_in * dot)
  int tail_heads;            // KeysOuter: the last heads, one group of their own
  const void* bias;
  long long bias_stride[4];
  const float* slopes;
  long long slope_stride[2];
  MaskBits mask;
  Dropout dropout;
  ModBufferView mod_buffers[8];
  // Tiles of work.
  unsigned* counters;              // two, zero at the start and at the end: tiles taken, blocks done
  int batch_inner;                 // batch entries of a head follow each other: they read the same bias
  int m_tiles, head_group, tiles;  // head_group: heads worked on at once, for L2 locality
};

}  // namespace onepass
