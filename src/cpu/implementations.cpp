#include "cpu/implementations.hpp"

#include <vector>

#include "cpu/decode.hpp"

namespace onepass::cpu {

std::span<const Implementation> implementations() {
  static const std::vector<Implementation> rows = [] {
    std::vector<Implementation> all;
    for (const auto& family : {decode_implementations()}) all.insert(all.end(), family.begin(), family.end());
    return all;
  }();
  return rows;
}

}  // namespace onepass::cpu
