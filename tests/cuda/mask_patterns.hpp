// Boolean masks that look like those people use: for the device source on the host and for kernels on a device.
#pragma once
#include <random>

#include "onepass/tensor.hpp"

namespace onepass::test {

struct MaskPattern {
  const char* name;
  bool (*sees)(int row, int key, unsigned draw);  // draw: a random number
};
inline constexpr MaskPattern kMaskPatterns[] = {
    {"documents", [](int i, int j, unsigned) { return i / 150 == j / 150; }},
    {"sparse blocks", [](int i, int j, unsigned) { return (i / 128 * 7 + j / 64 * 3) % 4 == 0; }},
    {"random", [](int, int, unsigned draw) { return draw % 3 == 0; }},
    {"full blocks beside random ones",
     [](int i, int j, unsigned draw) { return j / 128 % 2 == 0 || (i > 130 && draw % 2 == 0); }},
    {"full and empty blocks", [](int i, int j, unsigned) { return j / 64 % 2 == 0 && i > 40; }},
    {"rows without a key", [](int i, int j, unsigned) { return i >= 70 && i < 256 && j > 130; }},
    {"nothing", [](int, int, unsigned) { return false; }},
};

// For a mask in memory that may be written.
inline void fill_mask(const ConstTensor& mask, const MaskPattern& pattern) {
  std::mt19937 random(5);
  const Dims &n = mask.shape, &stride = mask.stride;
  const auto bytes = static_cast<unsigned char*>(const_cast<void*>(mask.data));
  for (std::int64_t b = 0; b < n[0]; ++b)
    for (std::int64_t h = 0; h < n[1]; ++h)
      for (std::int64_t i = 0; i < n[2]; ++i)
        for (std::int64_t j = 0; j < n[3]; ++j)
          bytes[b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3]] =
              pattern.sees(static_cast<int>(i + 40 * b), static_cast<int>(j + 64 * h), random());
}

}  // namespace onepass::test
