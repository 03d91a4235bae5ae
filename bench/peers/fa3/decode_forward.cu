// FlashAttention-3's forward kernels for one query: build.sh compiles them for -DDIM=64 and 128, -DPAGED=false and
// true. These are the kernels that such a call can reach: one query needs no causal mask and no cluster, and its pages
// never come by TMA (get_pagedkv_tma of hopper/flash_api.cpp needs more rows than a tile has).
#include "decode.h"
#include "flash_fwd_launch_template.h"

template <int Dim, bool Paged, bool Split>
static void run(Flash_fwd_params& p, cudaStream_t stream) {
  constexpr bool Causal = false, Local = false, Softcap = false, Varlen = false, Append = false, Qv = false,
                 Pack = true;
  run_flash_fwd<90, Dim, Dim, 1, Element, Element, Causal, Local, Softcap, Varlen, Paged, Append, Qv, Pack, Split,
                /*V_colmajor=*/false>(p, stream);
}

template <int Dim, bool Paged>
void run_decode(Flash_fwd_params& p, cudaStream_t stream) {
  p.num_splits > 1 ? run<Dim, Paged, true>(p, stream) : run<Dim, Paged, false>(p, stream);
}

template void run_decode<DIM, PAGED>(Flash_fwd_params&, cudaStream_t);
