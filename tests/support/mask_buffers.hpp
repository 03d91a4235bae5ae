// Buffers of a mask_mod with contents that bounds must hold for: runs, numbers below 0 and beyond any index, NaN,
// infinities and numbers that may be flushed to 0.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "algebra/numerics.hpp"
#include "expression/check_mods.hpp"
#include "onepass/tensor.hpp"

namespace onepass::test {

enum class MaskContents { runs, any };

class MaskBuffers {
 public:
  MaskBuffers(const std::vector<ModBuffer>& specs, MaskContents contents, std::mt19937& random) {
    for (const ModBuffer& spec : specs) {
      ConstTensor t(nullptr, spec.dtype, {1});
      t.rank = spec.rank, t.shape = spec.shape;
      std::int64_t step = 1;
      for (int d = spec.rank - 1; d >= 0; step *= spec.shape[static_cast<std::size_t>(d--)])
        t.stride[static_cast<std::size_t>(d)] = step;
      std::vector<std::byte>& memory = memory_.emplace_back(static_cast<std::size_t>(step) * size_of(spec.dtype));
      t.data = memory.data();
      for (std::int64_t i = 0; i < step; ++i) put(memory.data(), i, spec.dtype, contents, random);
      tensors_.push_back({spec.name, t});
    }
  }
  const std::vector<NamedTensor>& tensors() const { return tensors_; }

 private:
  static void put(std::byte* to, std::int64_t i, DType dtype, MaskContents contents, std::mt19937& random) {
    const bool runs = contents == MaskContents::runs;
    const int whole = runs ? static_cast<int>(i / 70) : static_cast<int>(random() % 700) - 150;
    const float kinds[] = {0, -0.0f, 1, -2.5f, std::numeric_limits<float>::infinity(), std::nanf(""), 3e38f, 1e-40f};
    const float number = runs ? 0.25f * static_cast<float>(whole) : kinds[random() % 8];
    switch (dtype) {
      case DType::i32: reinterpret_cast<std::int32_t*>(to)[i] = whole; break;
      case DType::boolean: reinterpret_cast<std::uint8_t*>(to)[i] = runs ? i / 40 % 2 == 0 : random() % 3 == 0; break;
      case DType::f16: reinterpret_cast<f16*>(to)[i] = from_float<f16>(number); break;
      case DType::bf16: reinterpret_cast<bf16*>(to)[i] = from_float<bf16>(number); break;
      default: reinterpret_cast<float*>(to)[i] = number;
    }
  }
  std::vector<std::vector<std::byte>> memory_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace onepass::test
