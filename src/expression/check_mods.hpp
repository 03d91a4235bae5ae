// The tensors that a call's expressions read, and checks of both, for every backend.
#pragma once
#include <span>
#include <string>

#include "onepass/options.hpp"
#include "onepass/tensor.hpp"

namespace onepass {

// A tensor that score_mod and mask_mod read as name[i] or name(i, j, ...). fp32, fp16, bf16, int32 or bool.
struct ModBuffer {
  std::string name;
  DType dtype = DType::f32;
  int rank = 1;
  Dims shape{1, 1, 1, 1};
  friend bool operator==(const ModBuffer&, const ModBuffer&) = default;
};

// Returns true if a buffer may be named without an index: it has one element.
inline bool is_single(const ModBuffer& buffer) { return buffer.rank == 1 && buffer.shape[0] == 1; }

// Throws Error for what is wrong in every backend: a name of FlexAttention's, a mask_mod that is not a bool. Other text
// that read_expression cannot read is left to the CUDA compiler, which reads more.
void check_mods(const Attention& options, std::span<const ModBuffer> buffers);

}  // namespace onepass
