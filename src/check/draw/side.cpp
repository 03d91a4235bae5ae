#include "check/draw/side.hpp"

#include <cmath>
#include <initializer_list>
#include <iterator>

#include "algebra/numerics.hpp"
#include "check/draw/random.hpp"
#include "check/inputs.hpp"

namespace onepass::check {
namespace {

enum Stream : std::int64_t { kBias = 3, kMask, kMods, kTiles = 110 };

// make(batch, head, row, key, where in memory)
template <class Make>
void each_pair(const ConstTensor& t, Make make) {
  const Dims& n = t.shape;
  for (std::int64_t b = 0; b < n[0]; ++b) {
    for (std::int64_t h = 0; h < n[1]; ++h) {
      for (std::int64_t i = 0; i < n[2]; ++i) {
        for (std::int64_t j = 0; j < n[3]; ++j)
          make(b, h, i, j, b * t.stride[0] + h * t.stride[1] + i * t.stride[2] + j * t.stride[3]);
      }
    }
  }
}

}  // namespace

void draw_bias(const ConstTensor& t, std::uint64_t seed) {
  Random r(seed, {kBias});
  each_pair(t, [&](std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t at) {
    store_element(const_cast<void*>(t.data), t.dtype, at, r.below(16) == 0 ? -INFINITY : 2 * r.normal());
  });
}

void draw_mask(const ConstTensor& t, std::uint64_t seed) {
  Random r(seed, {kMask});
  const auto fate = [&](std::initializer_list<std::int64_t> position, std::int64_t n) {
    return Random(seed + 1, position).below(n);
  };
  each_pair(t, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, std::int64_t at) {
    const std::int64_t block = fate({b, h, i / 32, j / 64}, 4);
    const bool hidden_row = t.shape[2] > 1 && fate({b, h, i}, 8) == 0;
    Inputs::writable<std::uint8_t>(t)[at] = !hidden_row && block != 0 && (block == 1 || r.below(2) == 0);
  });
}

void draw_block_mask(const ConstTensor& t, std::uint64_t seed) {
  constexpr std::int32_t kStates[] = {0, 0, 0, 0, 2, 2, 2, 1, 1, 1, -1, 3};
  const auto none = [&](std::int64_t side, std::int64_t b, std::int64_t h, std::int64_t i) {
    return t.shape[static_cast<std::size_t>(side)] > 1 && Random(seed, {kTiles, side, b, h, i}).below(8) == 0;
  };
  Random r(seed, {kTiles});
  each_pair(t, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, std::int64_t at) {
    const std::int32_t state = kStates[r.below(std::size(kStates))];
    Inputs::writable<std::int32_t>(t)[at] = none(2, b, h, i) || none(3, 0, 0, j) ? 0 : state;
  });
}

void draw_mod_buffer(const ConstTensor& t, std::int64_t number, std::uint64_t seed) {
  Random r(seed, {kMods, number});
  std::int32_t id = 0;
  const Dims& s = t.shape;
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    std::int64_t at = 0, rest = i;
    for (int d = t.rank - 1; d >= 0; rest /= s[d--]) at += rest % s[d] * t.stride[d];
    if (i % s[t.rank - 1] == 0) id = 0;
    id += r.below(50) == 0;
    if (t.dtype == DType::i32)
      Inputs::writable<std::int32_t>(t)[at] = id;
    else if (t.dtype == DType::boolean)
      Inputs::writable<std::uint8_t>(t)[at] = r.below(2) != 0;
    else
      store_element(const_cast<void*>(t.data), t.dtype, at, r.normal());
  }
}

}  // namespace onepass::check
