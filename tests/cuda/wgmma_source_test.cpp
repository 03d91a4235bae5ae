#include <gtest/gtest.h>

#include "cuda/compile/wgmma_source.hpp"

namespace onepass::cuda {
namespace {

TEST(WgmmaText, NamesEveryRegisterAndOperandOnce) {
  const std::string s = wgmma_source({16, 8, 16}, "bf16");
  EXPECT_EQ(s.find("struct Wgmma<8>"), s.rfind("struct Wgmma<8>"));
  EXPECT_EQ(s.find("struct Wgmma<16>"), s.rfind("struct Wgmma<16>"));
  // N = 8: d[0..3] are %0..%3; shared: a %4, b %5, flag %6; registers: a %4..%7, b %8, flag %9.
  EXPECT_NE(s.find("m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0"), s.npos) << s;
  EXPECT_NE(s.find("setp.ne.b32 p, %6, 0"), s.npos);
  EXPECT_NE(s.find("m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4, %5, %6, %7}, %8, p, 1, 1, 1"), s.npos);
  EXPECT_NE(s.find("setp.ne.b32 p, %9, 0"), s.npos);
  EXPECT_NE(wgmma_source({8}, "f16").find("k16.f32.f16.f16"), s.npos);
}

}  // namespace
}  // namespace onepass::cuda
