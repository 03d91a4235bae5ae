// Boolean masks that look like those people use: for the device source on the host and for kernels on a device.
#pragma once

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

}  // namespace onepass::test
