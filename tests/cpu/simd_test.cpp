// The SIMD adapter against plain C++: accuracy of exp2, log2 and tanh, special values, conversions bit by bit.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd_test.cpp"
#include <hwy/foreach_target.h>

#include "cpu/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

template <class T>
void widen(const T* from, float* to) {
  store(load(DF(), from), DF(), to);
}
template <class T>
void narrow(const float* from, T* to) {
  store(load(DF(), from), DF(), to);
}
void exp2s(const float* x, float* y) { store(Arith<VF>::exp2(load(DF(), x)), DF(), y); }
void log2s(const float* x, float* y) { store(Arith<VF>::log2(load(DF(), x)), DF(), y); }
void tanhs(const float* x, float* y) { store(tanh_of(load(DF(), x)), DF(), y); }
// The rest of a rounded square after its rounded value is subtracted: nothing.
void residues(const float* x, float* y) {
  store(Arith<VF>::of(0.0), DF(), y);
  const VF square = Arith<VF>::mul(load(DF(), x), load(DF(), x));
  store(Arith<VF>::mul(load(DF(), x), load(DF(), x)) + (load(DF(), y) - square), DF(), y);
}
// 1 where |x| <= 4096.
void withins(const float* x, float* y) {
  using A = Arith<VF>;
  store(A::if_within(load(DF(), x), 4096.0, A::of(1.0), A::of(0.0)), DF(), y);
}
void load_tail(const bf16* x, float* y, std::int64_t n) { store(load_n(DF(), x, n), DF(), y); }
void store_tail(const float* x, f16* y, std::int64_t n) { store_n(load(DF(), x), DF(), y, n); }

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <random>
#include <vector>

#include "cpu/common/flush_to_zero.hpp"

namespace onepass::cpu {
namespace {

using Map = void (*)(const float*, float*);
struct Isa {
  const char* name;
  std::int64_t target;
  int lanes;
  Map exp2s, log2s, tanhs, residues, withins;
  void (*widen_bf16)(const bf16*, float*);
  void (*widen_f16)(const f16*, float*);
  void (*narrow_bf16)(const float*, bf16*);
  void (*narrow_f16)(const float*, f16*);
  void (*load_tail)(const bf16*, float*, std::int64_t);
  void (*store_tail)(const float*, f16*, std::int64_t);
};
std::ostream& operator<<(std::ostream& out, const Isa& isa) { return out << isa.name; }

#define ONEPASS_ISA(N, target, name)                                                                         \
  Isa{name,       target,         N::kLanes,     N::exp2s,        N::log2s,       N::tanhs,     N::residues, \
      N::withins, N::widen<bf16>, N::widen<f16>, N::narrow<bf16>, N::narrow<f16>, N::load_tail, N::store_tail},
const Isa kIsas[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ISA)};

class Simd : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!(hwy::SupportedTargets() & GetParam().target)) GTEST_SKIP() << "this CPU has no " << GetParam().name;
  }
  float of(Map f, float x) const {
    alignas(64) float in[16], out[16];
    for (float& v : in) v = x;
    f(in, out);
    return out[GetParam().lanes - 1];
  }
};
constexpr float kInf = INFINITY;

TEST_P(Simd, Exp2IsWithinThreeUlp) {
  double worst = 0;
  for (float x = -126.0f; x < 127.0f; x += 0.00713f) {
    worst = std::max(worst, std::abs(of(GetParam().exp2s, x) / std::exp2(static_cast<double>(x)) - 1));
  }
  EXPECT_LT(worst, 2.6 * 0x1p-23);
  for (int n = -126; n < 128; ++n) EXPECT_EQ(of(GetParam().exp2s, static_cast<float>(n)), std::ldexp(1.0f, n)) << n;
}

TEST_P(Simd, Exp2OfTheFarEnds) {
  FlushToZero mode;
  for (float x : {-127.0f, -150.0f, -1e4f, -3e38f, -kInf}) EXPECT_EQ(of(GetParam().exp2s, x), 0.0f) << x;
  for (std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7fc00001u, 0x7fffffffu}) {
    EXPECT_TRUE(std::isnan(of(GetParam().exp2s, std::bit_cast<float>(bits)))) << std::hex << bits;
  }
}

TEST_P(Simd, Log2) {
  for (float x = 1.2e-38f; x < 3e38f; x *= 1.0123f) {
    const double want = std::log2(static_cast<double>(x));
    ASSERT_NEAR(of(GetParam().log2s, x), want, 1.5e-7 * std::max(1.0, std::abs(want))) << x;
  }
  EXPECT_EQ(of(GetParam().log2s, 1.0f), 0.0f);
  EXPECT_EQ(of(GetParam().log2s, 8.0f), 3.0f);
  EXPECT_EQ(of(GetParam().log2s, 0.0f), -kInf);
  EXPECT_EQ(of(GetParam().log2s, kInf), kInf);
  EXPECT_TRUE(std::isnan(of(GetParam().log2s, NAN)));
}

TEST_P(Simd, Tanh) {
  for (float x = 1e-6f; x < 30.0f; x *= 1.0037f) {
    const double want = std::tanh(static_cast<double>(x));
    ASSERT_NEAR(of(GetParam().tanhs, x), want, 3 * 0x1p-24 * want + 0x1p-40) << x;
    ASSERT_EQ(of(GetParam().tanhs, -x), -of(GetParam().tanhs, x));
  }
  EXPECT_EQ(of(GetParam().tanhs, kInf), 1.0f);
  EXPECT_EQ(of(GetParam().tanhs, -kInf), -1.0f);
  EXPECT_TRUE(std::isnan(of(GetParam().tanhs, NAN)));
}

TEST_P(Simd, ProductsAreRoundedForThemselvesAndBoundsHold) {
  for (const float x : {1.1f, -3.3333f, 4097.7f, 1e-9f}) EXPECT_EQ(of(GetParam().residues, x), 0.0f) << x;
  for (const float x : {0.0f, -0.5f, 4096.0f, -4096.0f}) EXPECT_EQ(of(GetParam().withins, x), 1.0f) << x;
  for (const float x : {4096.1f, -1e30f, kInf, -kInf, NAN}) EXPECT_EQ(of(GetParam().withins, x), 0.0f) << x;
}

bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
template <class T>
bool same_narrow(T a, T b) {
  return std::isnan(to_float(a)) ? std::isnan(to_float(b)) : a.bits == b.bits;
}

template <class T>
void widens(const Isa& isa, void (*widen)(const T*, float*)) {
  FlushToZero mode;
  for (unsigned base = 0; base < 65536; base += isa.lanes) {
    T in[16];
    alignas(64) float out[16];
    for (int i = 0; i < isa.lanes; ++i) in[i].bits = static_cast<std::uint16_t>(base + i);
    widen(in, out);
    for (int i = 0; i < isa.lanes; ++i) {
      const bool denormal =
          std::fpclassify(to_float(in[i])) == FP_SUBNORMAL;  // bf16's are bits, f16's are normal floats
      ASSERT_TRUE(denormal || same(out[i], to_float(in[i]))) << isa.name << " " << in[i].bits;
    }
  }
}
TEST_P(Simd, WidensEveryBf16) { widens(GetParam(), GetParam().widen_bf16); }
TEST_P(Simd, WidensEveryF16) { widens(GetParam(), GetParam().widen_f16); }

template <class T>
void narrows(const Isa& isa, void (*narrow)(const float*, T*)) {
  std::mt19937 random(7);
  for (int round = 0; round < 200000 / isa.lanes; ++round) {
    alignas(64) float in[16];
    T out[16];
    for (int i = 0; i < isa.lanes; ++i) {
      // near the exponents of fp16, with halfway cases; every fourth anywhere
      std::uint32_t bits = random();
      if (i % 4) bits = (bits & 0x807fffffu) | (100 + (bits >> 23) % 48) << 23;
      if (i % 2) bits = (bits & 0xffffe000u) | 0x1000u;
      in[i] = std::bit_cast<float>(bits);
    }
    if (round == 0) in[0] = kInf, in[1] = -kInf, in[2] = NAN, in[3] = 65519.9f;
    if (round == 1) in[0] = 65520.0f, in[1] = -0.0f, in[2] = 0x1p-25f, in[3] = 0x1.8p-25f;
    if (round == 2) in[0] = std::bit_cast<float>(0x7fffffffu), in[1] = 3.4e38f, in[2] = 0.0f, in[3] = 0x1p-14f;
    narrow(in, out);
    for (int i = 0; i < isa.lanes; ++i)
      ASSERT_TRUE(same_narrow(out[i], from_float<T>(in[i]))) << isa.name << " " << in[i];
  }
}
TEST_P(Simd, NarrowsToBf16) { narrows(GetParam(), GetParam().narrow_bf16); }
TEST_P(Simd, NarrowsToF16) { narrows(GetParam(), GetParam().narrow_f16); }

TEST_P(Simd, TailsTouchOnlyTheirElements) {
  const int lanes = GetParam().lanes;
  for (int n = 0; n < lanes; ++n) {
    const std::vector<bf16> in(n, from_float<bf16>(2.5f));  // its end is the allocation's end: ASan sees a wider read
    alignas(64) float wide[16];
    GetParam().load_tail(in.data(), wide, n);
    for (int i = 0; i < lanes; ++i) EXPECT_EQ(wide[i], i < n ? 2.5f : 0.0f);
    std::vector<f16> out(lanes, f16{0x1234});
    GetParam().store_tail(wide, out.data(), n);
    for (int i = 0; i < lanes; ++i) EXPECT_EQ(out[i].bits, i < n ? from_float<f16>(2.5f).bits : 0x1234);
  }
}

TEST(TargetsTest, AreThoseThatHighwayFinds) {
  for (const Isa& isa : kIsas)
    EXPECT_EQ(has_target(isa.target), (hwy::SupportedTargets() & isa.target) != 0) << isa.name;
}

TEST(FlushToZeroTest, RestoresTheMode) {
  volatile float tiny = 0x1p-130f;
  {
    FlushToZero mode;
    EXPECT_EQ(tiny * 0.5f, 0.0f);
  }
  EXPECT_EQ(tiny * 0.5f, 0x1p-131f);
}

INSTANTIATE_TEST_SUITE_P(Isas, Simd, testing::ValuesIn(kIsas),
                         [](const auto& isa) { return std::string(isa.param.name); });

}  // namespace
}  // namespace onepass::cpu
#endif
