// The AMX backend on a tile file made of plain arrays: the kernels' own source on any CPU with AVX-512.
#pragma once
#include "core/implementation.hpp"

namespace onepass::cpu::amx {

bool has_avx512();
Implementation emulated();  // "cpu.amx.bf16.emulated"

}  // namespace onepass::cpu::amx
