// FlashAttention-3's bf16 kernels for fixed lengths behind C functions, so that `onepass bench` can time them without
// its PyTorch extension. build.sh compiles it; the fields are those that mha_fwd and mha_bwd of hopper/flash_api.cpp
// fill.
#include <utility>

#include <cuda_runtime.h>
#include <cutlass/numeric_types.h>
#include "flash.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using Element = cutlass::bfloat16_t;

struct Sizes {
  int b, s, h, h_k, d;
};
int up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// The parameters of both passes. q, out [b, s, h, d], k, v [b, s, h_k, d] contiguous; lse [b, h, s].
void fill(Flash_fwd_params& p, const void* q, const void* k, const void* v, void* out, float* lse, Sizes n, bool causal,
          float scale) {
  static int const num_sm = [] {
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  }();
  p.is_bf16 = true;
  p.q_ptr = const_cast<void*>(q);
  p.k_ptr = const_cast<void*>(k);
  p.v_ptr = const_cast<void*>(v);
  p.o_ptr = out;
  p.q_row_stride = p.o_row_stride = int64_t(n.h) * n.d;
  p.k_row_stride = p.v_row_stride = int64_t(n.h_k) * n.d;
  p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = n.d;
  p.q_batch_stride = p.o_batch_stride = n.s * p.q_row_stride;
  p.k_batch_stride = p.v_batch_stride = n.s * p.k_row_stride;
  p.v_dim_stride = 1;
  p.softmax_lse_ptr = lse;
  p.b = p.b_k = n.b;
  p.h = n.h;
  p.h_k = n.h_k;
  p.seqlen_q = p.seqlen_k = n.s;
  p.d = p.d_rounded = p.dv = p.dv_rounded = n.d;
  p.total_q = p.total_k = n.b * n.s;
  p.scale_softmax = scale;
  p.p_dropout = p.rp_dropout = 1.f;
  p.p_dropout_in_uint8_t = 255;
  p.is_causal = causal;
  p.is_local = false;
  p.window_size_left = n.s - 1;
  p.window_size_right = causal ? 0 : n.s - 1;
  p.arch = 90;
  p.num_sm = num_sm;
}

// Rows and keys of a tile of the backward, as mha_bwd has them.
int block_m(int d, bool causal) { return d == 64 ? 128 : d == 128 && !causal ? 80 : 64; }
int block_n(int d) { return d <= 128 ? 128 : 80; }

// The parts of the backward's workspace, in order; each is a multiple of 256 bytes.
struct Workspace {
  int64_t statistic, dq_sums, kv_sums, semaphores;
  Workspace(Sizes n, bool causal) {
    int64_t const rows = int64_t(n.b) * n.h * up(n.s, block_m(n.d, causal)),
                  keys = int64_t(n.b) * n.h_k * up(n.s, block_n(n.d));
    auto const padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    statistic = padded(rows * 4);
    dq_sums = padded(rows * n.d * 4);
    kv_sums = n.h == n.h_k ? 0 : padded(keys * n.d * 4);
    semaphores = padded(rows / block_m(n.d, causal) * 4);
  }
  int64_t total() const { return 2 * statistic + dq_sums + 2 * kv_sums + semaphores; }
};

int status() {
  cudaError_t const e = cudaGetLastError();
  return e == cudaSuccess ? 0 : 1000 + e;
}

}  // namespace

namespace {

// The parameters that mha_fwd adds for a forward of fixed lengths. Returns the status of zeroing the tile counter.
int prepare(Flash_fwd_params& p, void* semaphore, cudaStream_t stream) {
  p.seqlen_q_rounded = p.seqlen_k_rounded = up(p.seqlen_q, 128);
  p.page_size = 1;
  p.num_splits = 1;
  p.varlen_sort_batches = true;
  p.head_swizzle = p.is_causal;
  if (!p.is_causal) return 0;
  p.tile_count_semaphore = static_cast<int*>(semaphore);
  cudaError_t const e = cudaMemsetAsync(semaphore, 0, sizeof(int), stream);
  return e == cudaSuccess ? 0 : 1000 + e;
}

}  // namespace

// semaphore: one int32, zeroed on the stream for causal calls as mha_fwd does. Returns 0, 1 for an unsupported d, or
// 1000 + cudaError_t.
EXPORTED int fa3_forward(const void* q, const void* k, const void* v, void* out, float* lse, void* semaphore, int b,
                         int s, int h, int h_k, int d, int causal, float scale, void* stream_) {
  auto stream = static_cast<cudaStream_t>(stream_);
  Flash_fwd_params p{};
  fill(p, q, k, v, out, lse, {b, s, h, h_k, d}, causal != 0, scale);
  if (int const e = prepare(p, semaphore, stream)) return e;
  if (d == 64)
    run_mha_fwd_<90, Element, 64, 64, false, false, false, false>(p, stream);
  else if (d == 128)
    run_mha_fwd_<90, Element, 128, 128, false, false, false, false>(p, stream);
  else if (d == 256)
    run_mha_fwd_<90, Element, 256, 256, false, false, false, false>(p, stream);
  else
    return 1;
  return status();
}

// q, k and v in e4m3 with factors [b, h_k] each, out in bf16. Returns as fa3_forward.
EXPORTED int fa3_forward_fp8(const void* q, const void* k, const void* v, float* q_descale, float* k_descale,
                             float* v_descale, void* out, float* lse, void* semaphore, int b, int s, int h, int h_k,
                             int d, int causal, float scale, void* stream_) {
  auto stream = static_cast<cudaStream_t>(stream_);
  Flash_fwd_params p{};
  fill(p, q, k, v, out, lse, {b, s, h, h_k, d}, causal != 0, scale);
  p.is_bf16 = false;
  p.is_e4m3 = true;
  p.q_descale_ptr = q_descale, p.k_descale_ptr = k_descale, p.v_descale_ptr = v_descale;
  p.q_descale_batch_stride = p.k_descale_batch_stride = p.v_descale_batch_stride = h_k;
  p.q_descale_head_stride = p.k_descale_head_stride = p.v_descale_head_stride = 1;
  if (int const e = prepare(p, semaphore, stream)) return e;
  using E4m3 = cutlass::float_e4m3_t;
  if (d == 64)
    run_mha_fwd_<90, E4m3, 64, 64, false, false, false, false>(p, stream);
  else if (d == 128)
    run_mha_fwd_<90, E4m3, 128, 128, false, false, false, false>(p, stream);
  else if (d == 256)
    run_mha_fwd_<90, E4m3, 256, 256, false, false, false, false>(p, stream);
  else
    return 1;
  return status();
}

EXPORTED int64_t fa3_backward_bytes(int b, int s, int h, int h_k, int d, int causal) {
  return Workspace({b, s, h, h_k, d}, causal != 0).total();
}

// dout and dq as q, dk and dv as k. `workspace`: fa3_backward_bytes() of memory. Grouped heads: sums that start at 0,
// set on the stream as mha_bwd does. deterministic: not for d 256, nor grouped heads. Returns as fa3_forward.
EXPORTED int fa3_backward(const void* q, const void* k, const void* v, const void* out, float* lse, const void* dout,
                          void* dq, void* dk, void* dv, void* workspace, int b, int s, int h, int h_k, int d,
                          int causal, int deterministic, float scale, void* stream_) {
  auto stream = static_cast<cudaStream_t>(stream_);
  Sizes const n{b, s, h, h_k, d};
  if (deterministic && (d == 256 || h != h_k)) return 1;
  Flash_bwd_params p{};
  fill(p, q, k, v, const_cast<void*>(out), lse, n, causal != 0, scale);
  p.seqlen_q_rounded = up(s, block_m(d, causal != 0));
  p.seqlen_k_rounded = up(s, block_n(d));
  p.do_ptr = const_cast<void*>(dout);
  p.dq_ptr = dq;
  p.dk_ptr = dk;
  p.dv_ptr = dv;
  p.do_row_stride = p.dq_row_stride = p.q_row_stride;
  p.dk_row_stride = p.dv_row_stride = p.k_row_stride;
  p.do_head_stride = p.dq_head_stride = p.dk_head_stride = p.dv_head_stride = d;
  p.do_batch_stride = p.dq_batch_stride = p.q_batch_stride;
  p.dk_batch_stride = p.dv_batch_stride = p.k_batch_stride;
  p.deterministic = deterministic != 0;
  Workspace const w(n, causal != 0);
  auto at = static_cast<char*>(workspace);
  auto const next = [&](int64_t bytes) { return std::exchange(at, at + bytes); };
  p.dsoftmax_sum = next(w.statistic);
  p.softmax_lse_log2_ptr = next(w.statistic);
  p.dq_accum_ptr = next(w.dq_sums);
  p.dq_semaphore = reinterpret_cast<int*>(next(w.semaphores));
  if (w.kv_sums) {
    cudaError_t const e = cudaMemsetAsync(at, 0, 2 * w.kv_sums, stream);
    if (e != cudaSuccess) return 1000 + e;
    p.dk_accum_ptr = next(w.kv_sums);
    p.dv_accum_ptr = next(w.kv_sums);
  }
  if (d == 64)
    run_mha_bwd_<90, Element, 64, false>(p, stream);
  else if (d == 128)
    run_mha_bwd_<90, Element, 128, false>(p, stream);
  else if (d == 256)
    run_mha_bwd_<90, Element, 256, false>(p, stream);
  else
    return 1;
  return status();
}
