// The host half of score_mod and mask_mod: the user's text becomes two device functions (attention/mods.cuh).
#pragma once
#include <string>

#include "cuda/attention/attention.hpp"
#include "problem/implementation.hpp"

namespace onepass::cuda {

// KernelProgram::user_code of a problem; empty without mods. A compiler error in it names "score_mod" or "mask_mod" as
// its file, with the user's own line numbers. derivatives: of score_mod, how many are wanted. It is compiled on dual
// numbers (dual.cuh) for one as well, on those of curve.cuh for two.
std::string mods_source(const Problem& problem, int derivatives = 0);

// Two problems of the same key have the same mods_source; the key takes some 0.1 us, the text 30 times that.
std::string mods_key(const Problem& problem);

// The text of user::mask_bounds, a mask_mod over intervals (scores/mod_bits.cuh). A mask_mod that only the CUDA
// compiler reads has no bounds.
std::string mask_bounds_source(const Problem& problem);
const char* element_text(DType dtype);  // the class of a buffer's elements

void fill_mod_buffers(const Tensors& arguments, ModBufferView* views);  // AttentionParams::mod_buffers

}  // namespace onepass::cuda
