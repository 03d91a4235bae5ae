// The forward kernels of decode_forward.cu, for decode.cu.
#pragma once

#include <cutlass/numeric_types.h>
#include "flash.h"

using Element = cutlass::bfloat16_t;

// One query for each sequence; with heads packed, in splits if params.num_splits > 1, pages without TMA.
template <int Dim, bool Paged>
void run_decode(Flash_fwd_params& params, cudaStream_t stream);
