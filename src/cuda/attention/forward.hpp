// The config and the parameters of all forward kernels, for every architecture, in addition to attention.hpp. One
// definition for the host and the device half.
#pragma once
#include "cuda/attention/attention.hpp"

namespace onepass {

struct ForwardFeatures {
  AttentionFeatures attention;
  ScalarType output;
  bool sinks;
  bool v_mean;            // what was taken out of V is added to O
  bool row_max, entropy;  // of each row, are asked for
  bool rounded_sums;      // O is divided by the sum of the rounded weights (Attention::partial)
  ONEPASS_FIELDS(ForwardFeatures, attention, output, sinks, v_mean, row_max, entropy, rounded_sums)
};

// Sixteen rows from `row` on that are not finite and go through the fallback; `before`: the warp's previous entry or
// -1. In a forward, `row` is odd if some row is wrong as a whole, LSE included.
struct FallbackEntry {
  int batch, head, row, before;
};

// A cache's fields stand last, so that those that every kernel reads keep their offsets, which ptxas' registers depend
// on: in front of them they cost sm80's kernel of d128, causal, 20 bytes of spills.
struct ForwardParams : AttentionParams {
  void* out;
  long long out_stride[3];
  float* lse;  // null: not wanted
  long long lse_stride[3];
  const float* sinks;
  long long sink_stride;
  FallbackEntry* fallback;  // one for each warp of each tile
  // A cache: how many keys of each sequence count; where its pages are.
  const int *seqused, *page_table;
  long long seqused_stride, table_stride[2];
  int page_size, page_shift, pages;  // page_shift: log2 of the size, or -1
  // Factors of what is e4m3, [batch, heads, blocks of 128 rows]; null: 1.
  const float *q_descale, *k_descale, *v_descale;
  long long q_descale_stride[3], k_descale_stride[3], v_descale_stride[3];
  const float* v_mean;  // [batch, K/V heads, dim_v]
  long long v_mean_stride[3];
  // Packed sequences with fewer or more rows are another kernel's of the same call; most_rows 0: no limit.
  int least_rows, most_rows;
  int concurrent;   // 1: such a kernel runs at the same time, and tiles are drawn from the first on
  const int* tree;  // [batch, drafts], the parents
  long long tree_stride[2];
  int drafts;
  float* row_max;
  long long row_max_stride[3];

  // The rows of a sequence as this kernel sees it.
  ONEPASS_HD int own_rows(int rows) const {
    return rows < least_rows || (most_rows != 0 && rows > most_rows) ? 0 : rows;
  }
};

// Those of kernels of many rows that compute entropies. The parameters that other kernels have of their own keep their
// offsets; those of them that compute entropies say where they have these two (ONEPASS_ENTROPY_PARAMS in epilogue.cuh).
struct EntropyParams : ForwardParams {
  float* entropy;
  long long entropy_stride[3];
};

}  // namespace onepass
