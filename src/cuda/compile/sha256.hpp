// SHA-256 (FIPS 180-4), for keys and files of the kernel cache.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace onepass::cuda {

class Sha256 {
 public:
  Sha256& add(std::string_view bytes);
  std::string hex();  // of all that was added, 64 digits; nothing may be added afterwards

 private:
  void block(const unsigned char* bytes);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> waiting_{};
  std::uint64_t bytes_ = 0;
};

}  // namespace onepass::cuda
