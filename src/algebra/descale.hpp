// The factor of numbers in fp8_e4m3: one definition for the CPU and for CUDA. Header-free.
#pragma once
#include "algebra/portable.hpp"

ONEPASS_BEGIN

// The least power of 2 that brings `most`, finite and not negative, to 448 = 1.75 * 2^8 or below: dividing by it rounds
// nothing. What is smaller than 2^-100 is taken for 2^-100.
ONEPASS_HD float descale_for(float most) {
  const unsigned bits = __builtin_bit_cast(unsigned, most > 0x1p-100f ? most : 0x1p-100f);
  return __builtin_bit_cast(float, (((bits + 0x1fffffu) >> 23) - 8) << 23);
}

ONEPASS_END
