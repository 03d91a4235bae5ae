// The tile half, in the order its parts need each other, compiled for AVX-512 and AMX. Define the tile file first.
#include "cpu/amx/kernels/square.hpp"

#include "cpu/amx/kernels/target-inl.h"

#include "cpu/amx/kernels/vector-inl.h"

#include "cpu/amx/kernels/pack-inl.h"

#include "cpu/amx/kernels/scores-inl.h"

#include "cpu/amx/kernels/nonfinite-inl.h"

#include "cpu/amx/kernels/softmax-inl.h"

#include "cpu/amx/kernels/units-inl.h"

#include "cpu/amx/kernels/row_blocks-inl.h"

#include "cpu/amx/kernels/attend-inl.h"

#include "cpu/amx/kernels/target_end-inl.h"
