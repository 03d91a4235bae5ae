// Checks of a call's expressions, for every backend.
#pragma once
#include <span>

#include "expression/mod_buffer.hpp"
#include "onepass/options.hpp"

namespace onepass {

// Returns true if a buffer may be named without an index: it has one element.
inline bool is_single(const ModBuffer& buffer) { return buffer.rank == 1 && buffer.shape[0] == 1; }

// Throws Error for what is wrong in every backend: a name of FlexAttention's, a mask_mod that is not a bool. Other text
// that read_expression cannot read is left to the CUDA compiler, which reads more.
void check_mods(const Attention& options, std::span<const ModBuffer> buffers);

}  // namespace onepass
