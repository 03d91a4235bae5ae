#!/usr/bin/env bash
# bench/peers/fa3/build.sh CHECKOUT OUT.so: FlashAttention-3 kernels, forward (bf16, e4m3) and backward (bf16) of head dims
# 64, 128 and 256, and decoding (bf16; 64, 128), with C functions in front of them, for $ONEPASS_FA3. CHECKOUT:
# flash-attention with its CUTLASS submodule (timed here: commit 0251105a):
# git clone --recurse-submodules https://github.com/Dao-AILab/flash-attention
# Needs nvcc (timed here: 13.0); 65 to 120 s forward, 105 to 200 s backward and 1.3 GiB for each head dim; decoding's five
# files 110 to 230 s each, on a core that others used too, and 4 GiB. The flags are those of hopper/setup.py.
set -euo pipefail
[[ $# -eq 2 ]] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
source=$1 out=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT

flags=(-O3 -std=c++17 --use_fast_math --expt-relaxed-constexpr -diag-suppress "177,20013,20014,2361"
       -gencode "arch=compute_90a,code=sm_90a" -Xcompiler "-fPIC,-fvisibility=hidden" -DNDEBUG
       -DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED -DCUTLASS_ENABLE_GDC_FOR_SM90 -DCUTLASS_DEBUG_TRACE_LEVEL=0
       "-I$source/hopper" "-I$source/csrc/cutlass/include")
for unused in PAGEDKV SPLIT APPENDKV LOCAL SOFTCAP PACKGQA FP16 VARLEN HDIM96 HDIM192 SM8x HDIMDIFF64 HDIMDIFF192; do
  flags+=("-DFLASHATTENTION_DISABLE_$unused")
done
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
for pass in fwd bwd; do
  for dim in 64 128 256; do
    "$nvcc" "${flags[@]}" -c "$source/hopper/instantiations/flash_${pass}_hdim${dim}_bf16_sm90.cu" \
            -o "$objects/$pass$dim.o"
  done
done
for dim in 64 128 256; do
  "$nvcc" "${flags[@]}" -c "$source/hopper/instantiations/flash_fwd_hdim${dim}_e4m3_sm90.cu" -o "$objects/fp8$dim.o"
done
for dim in 64 128; do
  for paged in false true; do
    "$nvcc" "${flags[@]}" "-DDIM=$dim" "-DPAGED=$paged" -c "$here/decode_forward.cu" -o "$objects/decode_$dim$paged.o"
  done
done
for functions in decode fa3; do
  "$nvcc" "${flags[@]}" -c "$here/$functions.cu" -o "$objects/$functions.o"
done
"$nvcc" -shared -cudart static -Xlinker -Bsymbolic "$objects"/*.o -o "$out" -lpthread -ldl -lrt
