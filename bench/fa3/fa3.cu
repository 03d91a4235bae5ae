// FlashAttention-3's bf16 forward for fixed lengths behind one C function, so that `onepass bench` can time it without
// its PyTorch extension. build.sh compiles it; the fields are those that mha_fwd of hopper/flash_api.cpp fills.
#include <cuda_runtime.h>
#include <cutlass/numeric_types.h>
#include "flash.h"

// q, k, v, out [b, s, h, d] bf16 contiguous; lse [b, h, s] fp32; semaphore one int32, zeroed on the stream for causal
// calls as mha_fwd does. Returns 0, 1 for an unsupported d, or 1000 + cudaError_t.
extern "C" __attribute__((visibility("default"))) int fa3_forward(const void* q, const void* k, const void* v,
                                                                  void* out, float* lse, void* semaphore, int b, int s,
                                                                  int h, int d, int causal, float scale,
                                                                  void* stream_) {
  auto stream = static_cast<cudaStream_t>(stream_);
  static int const num_sm = [] {
    int device = 0, n = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return n;
  }();
  Flash_fwd_params p{};
  p.is_bf16 = true;
  p.q_ptr = const_cast<void*>(q);
  p.k_ptr = const_cast<void*>(k);
  p.v_ptr = const_cast<void*>(v);
  p.o_ptr = out;
  p.q_row_stride = p.k_row_stride = p.v_row_stride = p.o_row_stride = int64_t(h) * d;
  p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = d;
  p.q_batch_stride = p.k_batch_stride = p.v_batch_stride = p.o_batch_stride = int64_t(s) * h * d;
  p.v_dim_stride = 1;
  p.softmax_lse_ptr = lse;
  p.b = p.b_k = b;
  p.h = p.h_k = h;
  p.seqlen_q = p.seqlen_k = s;
  p.seqlen_q_rounded = p.seqlen_k_rounded = (s + 127) / 128 * 128;
  p.d = p.d_rounded = p.dv = p.dv_rounded = d;
  p.total_q = p.total_k = b * s;
  p.scale_softmax = scale;
  p.p_dropout = p.rp_dropout = 1.f;
  p.p_dropout_in_uint8_t = 255;
  p.is_causal = causal != 0;
  p.is_local = false;
  p.window_size_left = s - 1;
  p.window_size_right = causal ? 0 : s - 1;
  p.page_size = 1;
  p.num_splits = 1;
  p.arch = 90;
  p.num_sm = num_sm;
  p.varlen_sort_batches = true;
  p.head_swizzle = p.is_causal;
  if (causal) {
    p.tile_count_semaphore = static_cast<int*>(semaphore);
    cudaError_t const e = cudaMemsetAsync(semaphore, 0, sizeof(int), stream);
    if (e != cudaSuccess) return 1000 + e;
  }
  if (d == 64)
    run_mha_fwd_<90, cutlass::bfloat16_t, 64, 64, false, false, false, false>(p, stream);
  else if (d == 128)
    run_mha_fwd_<90, cutlass::bfloat16_t, 128, 128, false, false, false, false>(p, stream);
  else if (d == 256)
    run_mha_fwd_<90, cutlass::bfloat16_t, 256, 256, false, false, false, false>(p, stream);
  else
    return 1;
  cudaError_t const e = cudaGetLastError();
  return e == cudaSuccess ? 0 : 1000 + e;
}
