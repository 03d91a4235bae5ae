// score_mod as every instruction set computes it, against the same expression in double: functions over their whole
// range, special values, every width of tile.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/expression_vectors_test.cpp"
#include <hwy/foreach_target.h>

#include "cpu/common/mods-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

void run_vectors(const Expression& e, std::span<const NamedTensor> buffers, const ExprMemory<float>& memory,
                 const ExprTile<float>& tile) {
  RunMod(e, buffers, memory).change(tile);
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "expression/scalar.hpp"
#include "support/named_params.hpp"

namespace onepass::cpu {
namespace {

struct Isa {
  const char* name;
  std::int64_t target;
  int lanes;
  void (*run)(const Expression&, std::span<const NamedTensor>, const ExprMemory<float>&, const ExprTile<float>&);
};
#define ONEPASS_ISA(N, target, name) Isa{name, target, N::kLanes, N::run_vectors},
const Isa kIsas[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ISA)};

class ExpressionVectors : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!has_target(GetParam().target)) GTEST_SKIP() << "this CPU has no " << GetParam().name;
  }
};

constexpr int kKeys = 67, kLanes = 64;

// Numbers of every size, then what has no size.
std::vector<float> scores() {
  std::mt19937 random(3);
  std::vector<float> s(kKeys * kLanes);
  for (std::size_t i = 0; i < s.size(); ++i) {
    const float unit = static_cast<float>(random() % 20001) / 10000.0f - 1;
    s[i] = unit * std::ldexp(1.0f, static_cast<int>(i % 40) - 20);
  }
  const float special[] = {0.0f,    -0.0f,   INFINITY,      -INFINITY,      NAN,           1e38f,
                           -1e38f,  88.5f,   88.8f,         127.3f,         127.9f,        128.0f,
                           -127.0f, -200.0f, 2147483648.0f, -2147483648.0f, -2147483904.0f};
  std::copy(std::begin(special), std::end(special), s.begin() + 100);
  return s;
}

const char* const kTexts[] = {"exp(score)",
                              "exp2(score)",
                              "log(score)",
                              "log2(score)",
                              "tanh(score)",
                              "sin(score)",
                              "cos(score)",
                              "sqrt(score)",
                              "floor(score)",
                              "ceil(score)",
                              "int(score)",
                              "abs(score) - max(score, 1) * min(score, -1)",
                              "-score / 3",
                              "score > 0.5f ? 2 * score : q_index - k_index",
                              "score == score",
                              "bool(score) + !score",
                              "h[q_index - k_index + 20] + b[k_index] * i[head] + f(head, k_index)",
                              "flag[q_index] && k_index % 3 == 1 ? score : 7",
                              "(q_index ^ k_index << 2 | head & 1) / 3"};

TEST_P(ExpressionVectors, GiveWhatDoublesGive) {
  std::vector<float> f(2 * 80);
  std::vector<f16> h(50);
  std::vector<bf16> b(3 * 40);
  const std::int32_t ints[] = {3, -4, 5};
  const bool flags[] = {true, false, true, true};
  for (std::size_t n = 0; n < f.size(); ++n) f[n] = static_cast<float>(n) / 8;
  for (std::size_t n = 0; n < h.size(); ++n) h[n] = from_float<f16>(static_cast<float>(n) - 9);
  for (std::size_t n = 0; n < b.size(); ++n) b[n] = from_float<bf16>(static_cast<float>(n) / 4);
  const std::vector<NamedTensor> buffers = {{"f", ConstTensor(f.data() + 79, DType::f32, {2, 80}, {80, -1})},
                                            {"h", ConstTensor(h.data(), DType::f16, {50})},
                                            {"b", ConstTensor(b.data(), DType::bf16, {40}, {3})},
                                            {"i", ConstTensor(ints, DType::i32, {3})},
                                            {"flag", ConstTensor(flags, DType::boolean, {4})}};
  std::vector<ModBuffer> specs;
  for (const auto& [name, t] : buffers) specs.push_back({name, t.dtype, t.rank, t.shape});
  std::int32_t head[kLanes], row[kLanes];
  for (int n = 0; n < kLanes; ++n) head[n] = n % 3, row[n] = n / 3;

  const Isa& isa = GetParam();
  for (const char* text : kTexts) {
    const Expression e = read_expression(ModKind::score, text, specs);
    const std::vector<float> in = scores();
    std::vector<double> exact(in.begin(), in.end()), numbers(e.steps.size() * kExprBlock);
    std::vector<std::int32_t> integers(numbers.size());
    ExprRun<double, ScalarFunctions>(e, buffers, {numbers.data(), integers.data()})
        .change({exact.data(), kLanes, kLanes, kKeys, 1, 5, head, row});
    for (const int width : {1, 2, 4, isa.lanes, 3 * isa.lanes, kLanes}) {
      if (width > kLanes) continue;
      std::vector<float> out = in;
      std::vector<float> memory(e.steps.size() * kExprBlock + 16);
      float* const aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 / 4;
      isa.run(e, buffers, {aligned, integers.data()}, {out.data(), kLanes, width, kKeys, 1, 5, head, row});
      for (int k = 0; k < kKeys; ++k) {
        for (int n = 0; n < width; ++n) {
          const double want = exact[k * kLanes + n], got = static_cast<double>(out[k * kLanes + n]);
          const float x = in[k * kLanes + n];
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(got)) << text << " of " << x << ": " << got;
          } else if (std::abs(want) > 3.402e38) {
            ASSERT_TRUE(got == std::copysign(HUGE_VAL, want) || std::abs(got) > 3.40e38)
                << text << " of " << x << ": " << got;
          } else {
            ASSERT_NEAR(got, want, 2e-5 * std::abs(want) + 1e-6) << text << " of " << x << ", width " << width;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, ExpressionVectors, testing::ValuesIn(kIsas),
                         [](const auto& isa) { return std::string(isa.param.name); });

}  // namespace
}  // namespace onepass::cpu
#endif
