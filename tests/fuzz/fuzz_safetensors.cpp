#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  onepass::fuzz::safetensors({reinterpret_cast<const char*>(data), size});
  return 0;
}
