// FlashAttention-3's decoding in bf16 behind C functions: one query for each sequence, a full cache, as mha_fwd of
// hopper/flash_api.cpp runs flash_attn_with_kvcache without cache_seqlens. Head dims 64 and 128.
#include <cuda_runtime.h>
#include "decode.h"
#include "flash_fwd_combine_launch_template.h"
#include "heuristics.h"
#include "tile_size.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Also the `Decoding` of bench/peers/flash_attention_3_decode.py. q, out [batch, heads, dim] contiguous; k, v alike,
// strides in elements: of a key, of a head, of a sequence or page; table: null or [batch, keys / page]. lse [batch,
// heads]; parts of `splits` results [splits, batch, heads, dim] and their lse [splits, batch, heads], for more than one
// split.
struct Decoding {
  void *q, *k, *v, *out, *lse, *parts, *lse_parts, *table;
  int64_t key_stride, head_stride, batch_stride;
  int batch, heads, heads_kv, keys, dim, page, pages;
  float scale;
};

namespace {

int num_sm() {
  static int const counted = [] {
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  }();
  return counted;
}

// The results of get_num_splits and get_pack_gqa.
struct Plan {
  int splits;
  bool pack;
};

Plan plan(Decoding const& d) {
  bool const paged = d.table != nullptr;
  auto const tile = tile_size_fwd_sm90(d.dim, d.dim, false, false, 2, false, paged, false);
  auto const blocks = [](int n, int block) { return (n + block - 1) / block; };
  int const group = d.heads / d.heads_kv, m_blocks = blocks(group, std::get<0>(tile));
  int const splits = num_splits_heuristic(d.batch * d.heads_kv * m_blocks, num_sm(), blocks(d.keys, std::get<1>(tile)),
                                          m_blocks, d.keys * 2 * d.dim * 2, false, 128);
  return {splits, paged || splits > 1 || (group > 1 && should_pack_gqa(false, 1, group, std::get<0>(tile)))};
}

Flash_fwd_params filled(Decoding const& d, Plan plan) {
  Flash_fwd_params p{};
  p.is_bf16 = true;
  p.q_ptr = d.q;
  p.k_ptr = d.k;
  p.v_ptr = d.v;
  p.o_ptr = d.out;
  p.q_head_stride = p.o_head_stride = d.dim;
  p.q_row_stride = p.o_row_stride = p.q_batch_stride = p.o_batch_stride = int64_t(d.heads) * d.dim;
  p.k_row_stride = p.v_row_stride = d.key_stride;
  p.k_head_stride = p.v_head_stride = d.head_stride;
  p.k_batch_stride = p.v_batch_stride = d.batch_stride;
  p.v_dim_stride = 1;
  p.softmax_lse_ptr = d.lse;
  p.b = p.b_k = p.total_q = d.batch;
  p.h = d.heads;
  p.h_k = d.heads_kv;
  p.seqlen_q = 1;
  p.seqlen_k = d.keys;
  p.seqlen_q_rounded = 128;
  p.seqlen_k_rounded = (d.keys + 127) / 128 * 128;
  p.total_k = d.batch * d.keys;
  p.d = p.d_rounded = p.dv = p.dv_rounded = d.dim;
  p.scale_softmax = d.scale;
  p.p_dropout = p.rp_dropout = 1.f;
  p.p_dropout_in_uint8_t = 255;
  p.window_size_left = d.keys - 1;
  p.arch = 90;
  p.num_sm = num_sm();
  p.page_table = static_cast<int*>(d.table);
  p.page_size = d.table ? d.page : 1;
  p.page_table_batch_stride = d.table ? d.keys / d.page : 0;
  p.num_pages = d.pages;
  p.varlen_sort_batches = true;
  p.num_splits = plan.splits;
  p.pack_gqa = plan.pack;
  int64_t const rows = int64_t(d.batch) * d.heads;
  p.oaccum_ptr = d.parts;
  p.softmax_lseaccum_ptr = d.lse_parts;
  p.oaccum_split_stride = rows * d.dim;
  p.oaccum_batch_stride = int64_t(d.heads) * d.dim;
  p.oaccum_head_stride = p.oaccum_row_stride = d.dim;
  p.lseaccum_split_stride = rows;
  p.lseaccum_batch_stride = d.heads;
  p.lseaccum_head_stride = 1;
  return p;
}

template <int Dim, int LogSplits>
void combine(Flash_fwd_params& p, cudaStream_t stream) {
  run_flash_fwd_combine<90, Dim == 64 ? 16 : 8, Dim, LogSplits, false, false, Element, float>(p, stream, true);
}

template <int Dim>
void decode(Flash_fwd_params& p, cudaStream_t stream) {
  if (p.page_table)
    run_decode<Dim, true>(p, stream);
  else if (p.pack_gqa)
    run_decode<Dim, false>(p, stream);
  else  // as fa3_forward
    run_mha_fwd_<90, Element, Dim, Dim, false, false, false, false>(p, stream);
  if (p.num_splits == 1) return;
  if (p.num_splits > 64) return combine<Dim, 7>(p, stream);
  if (p.num_splits > 32) return combine<Dim, 6>(p, stream);
  if constexpr (Dim == 64)
    if (p.num_splits <= 16) return combine<Dim, 4>(p, stream);
  combine<Dim, 5>(p, stream);
}

}  // namespace

// The number of splits for which `parts` and `lse_parts` must have room.
EXPORTED int fa3_decode_splits(Decoding const* d) { return plan(*d).splits; }

// Returns 0, 1 for an unsupported head dim or more heads of q to one of k than a tile has rows, or 1000 + cudaError_t.
EXPORTED int fa3_decode(Decoding const* d, void* stream) {
  if (d->heads / d->heads_kv > 128) return 1;
  auto p = filled(*d, plan(*d));
  if (d->dim == 64)
    decode<64>(p, static_cast<cudaStream_t>(stream));
  else if (d->dim == 128)
    decode<128>(p, static_cast<cudaStream_t>(stream));
  else
    return 1;
  cudaError_t const e = cudaGetLastError();
  return e == cudaSuccess ? 0 : 1000 + e;
}
