// The tile half, in the order its parts need each other, compiled for AVX-512 and AMX. Define the tile file first.
#include "cpu/amx_target-inl.h"

#include "cpu/amx_vector-inl.h"

#include "cpu/amx_pack-inl.h"

#include "cpu/amx_scores-inl.h"

#include "cpu/amx_softmax-inl.h"

#include "cpu/amx_attend-inl.h"

#include "cpu/amx_target_end-inl.h"
