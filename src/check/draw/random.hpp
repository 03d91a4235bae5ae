// Fast repeatable numbers: a stream per (seed, tensor, position), so that any row can be drawn alone.
#pragma once
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace onepass::check {

// SplitMix64 (Steele, Lea & Flood 2014).
class Random {
 public:
  Random(std::uint64_t seed, std::initializer_list<std::int64_t> position) : state_(seed) {
    for (std::int64_t x : position) state_ = bits() ^ static_cast<std::uint64_t>(x);
  }
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n)); }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }  // [0, 1)
  // N(0, 1), one of 65536 values made by Box-Muller, picked by 16 bits.
  float normal() {
    if (left_ == 0) {
      pool_ = bits();
      left_ = 4;
    }
    const float x = normals()[pool_ & 0xffffu];
    pool_ >>= 16;
    --left_;
    return x;
  }

 private:
  static const std::vector<float>& normals() {
    static const std::vector<float> table = [] {
      constexpr double kTurn = 6.283185307179586;
      std::vector<float> t;
      for (Random r(1, {}); t.size() < 65536;) {
        const double radius = std::sqrt(-2.0 * std::log(1.0 - static_cast<double>(r.uniform()))),
                     angle = kTurn * static_cast<double>(r.uniform());
        t.push_back(static_cast<float>(radius * std::cos(angle)));
        t.push_back(static_cast<float>(radius * std::sin(angle)));
      }
      return t;
    }();
    return table;
  }
  std::uint64_t state_, pool_ = 0;
  int left_ = 0;
};

}  // namespace onepass::check
