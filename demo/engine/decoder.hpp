// A decoder with random weights: rotary attention with grouped heads, and a layer of ReLUs. Only attention is onepass.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace engine {

using Numbers = std::vector<float>;
using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

constexpr std::int64_t kWords = 64, kWidth = 64, kLayers = 2, kHeads = 4, kHeadsKv = 2, kDim = 16;
constexpr std::int64_t kQkv = (kHeads + 2 * kHeadsKv) * kDim;

// rows x inner times inner x columns
inline Numbers product(const Numbers& a, const Numbers& b, std::int64_t inner, std::int64_t columns) {
  const std::int64_t rows = static_cast<std::int64_t>(a.size()) / inner;
  Numbers c(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t k = 0; k < inner; ++k)
      for (std::int64_t j = 0; j < columns; ++j) c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
  return c;
}
inline Numbers normed(Numbers x) {
  for (std::size_t row = 0; row < x.size(); row += kWidth) {
    const float squares = std::inner_product(&x[row], &x[row] + kWidth, &x[row], 1e-6f * kWidth);
    for (std::size_t i = row; i < row + kWidth; ++i) x[i] /= std::sqrt(squares / kWidth);
  }
  return x;
}

struct Decoder {
  struct Layer {
    Numbers qkv, out, up, down;
  };
  std::int64_t positions;
  Numbers embedding, to_words, cos, sin;
  std::vector<Layer> layers;

  explicit Decoder(std::int64_t most_tokens)
      : positions(most_tokens), embedding(kWords * kWidth), cos(positions * kDim / 2), sin(cos.size()) {
    std::mt19937 random(1);
    const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
      std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(rows)));
      Numbers m(static_cast<std::size_t>(rows * columns));
      for (float& x : m) x = normal(random);
      return m;
    };
    to_words = matrix(kWidth, kWords);
    for (std::int64_t i = 0; i < kWords; ++i)
      for (std::int64_t j = 0; j < kWidth; ++j) embedding[i * kWidth + j] = to_words[j * kWords + i];
    for (std::int64_t n = 0; n < kLayers; ++n)
      layers.push_back({matrix(kWidth, kQkv), matrix(kHeads * kDim, kWidth), matrix(kWidth, 4 * kWidth),
                        matrix(4 * kWidth, kWidth)});
    for (std::int64_t position = 0; position < positions; ++position) {
      for (std::int64_t i = 0; i < kDim / 2; ++i) {
        const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim);
        cos[position * kDim / 2 + i] = static_cast<float>(std::cos(angle));
        sin[position * kDim / 2 + i] = static_cast<float>(std::sin(angle));
      }
    }
  }

  // [tokens][words]. attend(layer, qkv, out) sees to positions, cache and mask: [tokens][heads + 2 heads_kv][dim] in,
  // [tokens][heads][dim] out.
  template <class Attend>
  Numbers logits(const Ints& tokens, const Attend& attend) const {
    Numbers x;
    for (const std::int32_t token : tokens)
      x.insert(x.end(), &embedding[token * kWidth], &embedding[token * kWidth] + kWidth);
    for (std::int64_t n = 0; n < kLayers; ++n) {
      const Layer& layer = layers[static_cast<std::size_t>(n)];
      Numbers qkv = product(normed(x), layer.qkv, kWidth, kQkv), mixed(tokens.size() * kHeads * kDim);
      attend(static_cast<std::size_t>(n), qkv, mixed);
      const Numbers added = product(mixed, layer.out, kHeads * kDim, kWidth);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += added[i];
      Numbers hidden = product(normed(x), layer.up, kWidth, 4 * kWidth);
      for (float& h : hidden) h = std::max(h, 0.0f);
      const Numbers more = product(hidden, layer.down, 4 * kWidth, kWidth);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += more[i];
    }
    return product(normed(x), to_words, kWidth, kWords);
  }
};

}  // namespace engine
