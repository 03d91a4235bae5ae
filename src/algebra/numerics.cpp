#include "algebra/numerics.hpp"

namespace onepass {

float load_element(const void* data, DType dtype, std::int64_t index) {
  return with_float_type(dtype, [&](auto zero) { return to_float(static_cast<const decltype(zero)*>(data)[index]); });
}

void store_element(void* data, DType dtype, std::int64_t index, float value) {
  with_float_type(dtype,
                  [&](auto zero) { static_cast<decltype(zero)*>(data)[index] = from_float<decltype(zero)>(value); });
}

}  // namespace onepass
