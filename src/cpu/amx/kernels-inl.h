// The tile half, in the order its parts need each other, compiled for AVX-512 and AMX. Define the tile file first.
#include "cpu/amx/square.hpp"

#include "cpu/amx/target-inl.h"

#include "cpu/amx/vector-inl.h"

#include "cpu/amx/pack-inl.h"

#include "cpu/amx/scores-inl.h"

#include "cpu/amx/softmax-inl.h"

#include "cpu/amx/attend-inl.h"

#include "cpu/amx/target_end-inl.h"
