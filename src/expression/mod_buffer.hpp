// The tensors that expressions read.
#pragma once
#include <string>

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

}  // namespace onepass
