// A mask_mod as a packed mask: the parameters of its packing. One definition for the host and the device half.
#pragma once
#include "cuda/attention/attention.hpp"
#include "cuda/attention/scores/mask_bits.hpp"

namespace onepass {

// pack: as of a boolean mask, which may be given beside it (pack.mask; else null).
struct ModPackParams {
  MaskPackParams pack;
  ModBufferView buffers[8];
};

}  // namespace onepass
