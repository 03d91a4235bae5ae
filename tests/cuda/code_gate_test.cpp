// The gates must close: each is shown code that it has to refuse.
#include "code_gate.hpp"

#include <gtest/gtest.h>

#include "cuda/driver/api.hpp"

namespace onepass::cuda {
namespace {

Cubin compiled(const std::string& code) {
  return compile({.file = "cuda/device/types.cuh", .entry = "f", .config = code, .arch = "sm_90a"});
}

class Gate : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string why; !nvrtc(&why)) GTEST_SKIP() << why;
  }
};

constexpr char kPlain[] = "extern \"C\" __global__ void f(float* p) { p[threadIdx.x] *= 2; }";

TEST_F(Gate, LetsPlainCodePass) { EXPECT_EQ(wrong_code(compiled(kPlain), {128, {}}), ""); }

TEST_F(Gate, RefusesAStack) {
  const Cubin cubin = compiled(
      "extern \"C\" __global__ void f(float* p, int n) { float a[64]; for (int i = 0; i < 64; ++i) a[i] = p[i];"
      " for (int i = 0; i < n; ++i) a[int(p[i])] += 1; p[n] = a[n]; }");
  EXPECT_EQ(wrong_code(cubin, {128, {}}).substr(0, 27), "there is a stack or a spill");
}

TEST_F(Gate, RefusesSpills) {  // 100 live values do not fit 32 registers
  const Cubin cubin = compiled(
      "extern \"C\" __global__ void __launch_bounds__(1024, 2) f(float* p) { float a[100];\n#pragma unroll\n"
      "for (int i = 0; i < 100; ++i) a[i] = p[i * 1024 + threadIdx.x]; __syncthreads();\n#pragma unroll\n"
      "for (int i = 0; i < 100; ++i) p[i * 1024 + threadIdx.x] = a[i] * a[99 - i]; }");
  EXPECT_EQ(wrong_code(cubin, {1024, {}}).substr(0, 27), "there is a stack or a spill");
}

TEST_F(Gate, RefusesTooManyRegisters) {
  Cubin cubin = compiled(kPlain);
  EXPECT_EQ(wrong_code(cubin, {8192, {}}).find(" registers of 8"), wrong_code(cubin, {8192, {}}).find(' '));
  cubin.log.clear();
  EXPECT_NE(wrong_code(cubin, {128, {}}), "");
}

TEST_F(Gate, RefusesSerialisedWgmma) {
  Cubin cubin = compiled(kPlain);
  cubin.log += "info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized";
  EXPECT_EQ(wrong_code(cubin, {128, {}}).substr(0, 19), "wgmma is serialised");
}

TEST_F(Gate, MissesAnInstruction) {
  if (!can_disassemble()) GTEST_SKIP() << "nvdisasm is not installed";
  EXPECT_EQ(wrong_code(compiled(kPlain), {128, {"EXIT", "HGMMA"}}), "there is no HGMMA");
  Cubin cubin = compiled(kPlain);
  cubin.bytes.resize(cubin.bytes.size() / 2);
  EXPECT_EQ(wrong_code(cubin, {128, {}}), "nvdisasm cannot read the cubin");
}

}  // namespace
}  // namespace onepass::cuda
