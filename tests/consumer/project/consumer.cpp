// Two keys of equal score: the output is the mean of their values, and the LSE is the common score plus ln 2.
// What is thrown is caught here by its type, and says what is wrong.
#include <onepass/onepass.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>

namespace {

bool caught() {
  try {
    (void)onepass::make_plan("fwd nonsense");
  } catch (const onepass::Error& e) {
    std::printf("%s\n", e.what());
    return e.code() == onepass::ErrorCode::bad_text && std::strstr(e.what(), "nonsense");
  }
  return false;
}

}  // namespace

int main() {
  const float q[4] = {1, 2, 3, 4}, k[8] = {1, 1, 1, 1, 1, 1, 1, 1}, v[4] = {1, 10, 3, 30};
  float out[2] = {}, lse = 0;
  using enum onepass::DType;
  onepass::attention({.q = {q, f32, {1, 1, 1, 4}},
                      .k = {k, f32, {1, 1, 2, 4}},
                      .v = {v, f32, {1, 1, 2, 2}},
                      .out = {out, f32, {1, 1, 1, 2}},
                      .lse = {&lse, f32, {1, 1, 1}}});
  std::printf("out = [%g, %g], lse = %g\n", out[0], out[1], lse);
  const bool right =
      std::abs(out[0] - 2) < 1e-6f && std::abs(out[1] - 20) < 1e-5f && std::abs(lse - (5 + std::log(2.0f))) < 1e-5f;
  return right && caught() ? 0 : 1;
}
