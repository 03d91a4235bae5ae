#include "check/draw/factors.hpp"

#include <cmath>

#include "check/draw/random.hpp"
#include "check/inputs.hpp"

namespace onepass::check {
namespace {

enum Stream : std::int64_t { kSinks = 200, kDescales, kMeans };

template <class Make>
void fill(const ConstTensor& t, Make make) {  // [batch, heads, blocks or columns]
  for (std::int64_t i = 0, n = t.shape[2], h = t.shape[1]; t.given() && i < t.elements(); ++i)
    Inputs::writable<float>(t)[i / n / h * t.stride[0] + i / n % h * t.stride[1] + i % n * t.stride[2]] = make();
}

}  // namespace

void draw_descale(const ConstTensor& t, Role role, std::uint64_t seed) {
  Random r(seed, {kDescales, static_cast<std::int64_t>(role)});
  fill(t, [&] { return std::exp2f(-1 - static_cast<float>(r.below(1000)) / 200); });
}

void draw_mean(const ConstTensor& t, std::uint64_t seed) {
  Random r(seed, {kMeans});
  fill(t, [&] { return r.normal(); });
}

void draw_slopes(const ConstTensor& t, std::int64_t heads) {
  const std::int64_t per_batch = t.rank == 2 ? t.shape[0] : 1;
  for (std::int64_t b = 0; b < per_batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h)
      Inputs::writable<float>(t)[b * (t.rank == 2 ? t.stride[0] : 0) + h] =
          std::exp2f(-static_cast<float>(1 + (b + h) % 8));
  }
}

void draw_sinks(const ConstTensor& t, std::uint64_t seed) {
  Random r(seed, {kSinks});
  for (std::int64_t h = 0; h < t.shape[0]; ++h) Inputs::writable<float>(t)[h] = 4 + 4 * r.normal();
}

}  // namespace onepass::check
