// Every config of the tables compiles, and to the code that was meant. Needs NVRTC, not a GPU; skipped where it is
// missing.
#include <gtest/gtest.h>

#include <set>

#include "code_gate.hpp"
#include "cuda/append/host.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/gemm/flat_gemm.hpp"
#include "cuda/gemm/gemv.hpp"
#include "cuda/merge/merge.hpp"
#include "cuda/rows/host.hpp"
#include "cuda/sm90/forward/forward.hpp"
#include "cuda/softmax/softmax.hpp"
#include "onepass/error.hpp"
#include "problem/problem.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

class Sm90Forward : public testing::TestWithParam<const char*> {};

TEST_P(Sm90Forward, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const Problem p = parse_problem(std::string(GetParam()) + " cuda");
  const sm90::ForwardConfig config = sm90::select_config(p).value();
  const ForwardFeatures features = cuda::features_of(p);
  EXPECT_LE(sm90::layout_of(features, config).total, 232448);  // shared memory of a Hopper block
  cuda::CodeGate gate{128 * (config.groups + 1), {"HGMMA", "UTMALDG"}};
  if (p.out_dtype != DType::f32) gate.instructions.push_back("UTMASTG");
  if (features.entropy) gate.spilled = 24;                 // of the rows that are computed again
  if (p.partial && config.groups == 3) gate.spilled = 24;  // around the loop over keys, in 1 % of a causal call's time
  EXPECT_EQ(cuda::wrong_code(cuda::compile(sm90::program_of(features, config)), gate), "");
}

// Some rows of the table with many features; the other rows and features are in More, of ./dev test all.
INSTANTIATE_TEST_SUITE_P(
    Table, Sm90Forward,
    testing::Values(
        "fwd b1 h1 s4096 d64 bf16 mask=bhqk alibi softcap=30",
        "fwd b1 h1 s16384 d128 bf16 softcap=30 sinks alibi causal_bottom_right",
        "fwd b1 h1 s4096 d128 bf16 causal_bottom_right entropy row_max",
        "fwd b1 h1 s4096 d512 bf16 causal_bottom_right",
        "fwd b1 h1 s4096 d128 bf16 kv_dtype=fp8_e4m3 kv=paged:16 k_descale=bhn v_descale=bhn bias=bf16:1hqk"));
INSTANTIATE_TEST_SUITE_P(
    More, Sm90Forward,
    testing::Values(
        "fwd h1 d128 bf16 varlen=128,512 dropout=0.1", "fwd b1 h1 s4096 d192/128 bf16 causal_bottom_right",
        "fwd b1 h1 s4096 d128 bf16 causal_bottom_right row_max", "fwd b1 h1 s4096 d64 bf16 entropy",
        "fwd b1 h1 s4096 d256 bf16 mask=11qk causal_bottom_right",
        "fwd b1 h1 s4096 d128 bf16 kv=paged:64 seqused causal_bottom_right",
        "fwd b1 h1 s4096 d128 bf16 kv=paged:16 seqused tree=64 causal_bottom_right",
        "fwd b1 h1 s4096 d128 bf16 bias=fp16:bhqk causal_bottom_right",
        "fwd b1 h1 s4096 d64 bf16 causal_bottom_right entropy sinks", "fwd b1 h1 s4096 d128 bf16 entropy",
        "fwd b1 h1 s1024 d64 fp16 causal_bottom_right entropy", "fwd b1 h1 s4096 d256 bf16 entropy",
        "fwd b1 h1 s16384 d128 bf16 causal_bottom_right entropy", "fwd b1 h1 s4096 d64 bf16 out=fp32 entropy",
        "fwd b1 h1 s4096 d192/128 bf16 entropy", "fwd b1 h1 s4096 d512 bf16 causal_bottom_right entropy",
        "fwd h1 d128 bf16 varlen=128,512 softcap=20 sinks entropy row_max",
        "fwd b1 h1 s4096 d64 bf16 bias=bf16:bhqk mask=11qk entropy",
        "fwd b1 h1 s4096 d128 bf16 bias=bf16:1hqk dropout=0.1 entropy",
        "fwd b1 h1 s4096 d256 bf16 softcap=20 mask=11qk dropout=0.1 entropy",
        "fwd b1 h1 s4096 d128 bf16 kv=paged:16 seqused tree=64 causal_bottom_right entropy",
        "fwd b1 h1 s4096 d128 fp16 causal_bottom_right", "fwd b1 h1 s4096 d128 bf16 out=fp32",
        "fwd b1 h1 s4096 d64 bf16 bias=bf16:bhqk mask=11qk", "fwd b1 h1 s4096 d256 bf16 row_max",
        "fwd b1 h1 s4096 d512 bf16 bias=bf16:bhqk softcap=20 dropout=0.1", "fwd b1 h1 s4096 d64 bf16",
        "fwd b1 h1 s4096 d64 bf16 causal_bottom_right", "fwd b1 h1 s1024 d64 bf16 causal_bottom_right",
        "fwd b1 h1 s1024 d64 bf16 causal_bottom_right bias=bf16:bhqk", "fwd b1 h1 s4096 d64 bf16 out=fp32",
        "fwd b1 h1 s4096 d64 bf16 scale=-0.2", "fwd h1 d64 bf16 varlen=128,512", "fwd b1 h1 s4096 d128 bf16",
        "fwd b1 h1 s1024 d128 bf16", "fwd b1 h1 s16384 d128 fp16 causal_bottom_right sinks",
        "fwd b1 h1 s4096 d128 bf16 window=1024:0", "fwd b1 h1 s4096 d128 bf16 mask=bhqk causal_bottom_right",
        "fwd b1 h1 s4096 d128 bf16 softcap=30 sinks mask=11qk", "fwd b1 h1 s4096 d128 bf16 bias=bf16:1hqk softcap=30",
        "fwd b1 h1 s4096 d64 bf16 bias=bf16:1hqk", "fwd h1 d128 bf16 varlen=128,512 softcap=20 sinks",
        "fwd b1 h1 s4096 d128 bf16 bias=fp32:bhqk", "fwd b1 h1 s4095 d128 bf16 bias=bf16:bhqk",
        "fwd b1 h1 s4096 d128 bf16 dropout=0.1 mask=11qk bias=bf16:11qk",
        "fwd b1 h1 s4096 d128 bf16 dropout=0.1 dropout_seed", "fwd h1 d128 bf16 varlen=128,512 causal_bottom_right",
        "fwd b1 h1 s4096 d96 bf16",
        "fwd h8/2 d64 bf16 varlen=128,512 seqused=900,512 kv=paged:16 tree=64 causal_bottom_right",
        "fwd b1 h1 s4096 d128 bf16 tree=64 causal_bottom_right softcap=20 sinks window=100:0",
        "fwd b1 h1 s16384 d128 bf16 causal_bottom_right out=fp32 partial sinks",
        "fwd b1 h1 s4096 d128 fp16 out=fp32 partial row_max", "fwd b1 h1 s4096 d64 bf16 out=fp32 partial",
        "fwd b1 h1 s4096 d64 bf16 bias=bf16:bhqk out=fp32 partial",
        "fwd b1 h1 s4096 d256 bf16 kv=paged:16 seqused tree=64 causal_bottom_right",
        "fwd b1 h1 s4096 d192 bf16 tree=64 causal_bottom_right",
        "fwd b1 h1 s4096 d128 bf16 kv_dtype=fp8_e4m3 kv=paged:16 seqused tree=64 causal_bottom_right",
        "fwd b1 h1 s4096 d192 bf16", "fwd b1 h1 s4096 d192 bf16 mask=11qk bias=bf16:bhqk", "fwd b1 h1 s4096 d256 bf16",
        "fwd b1 h1 s4096 d256 bf16 bias=bf16:bhqk alibi", "fwd b1 h1 s4096 d512 bf16",
        "fwd h1 d320 fp16 varlen=128,512 softcap=20 mask=11qk",
        "fwd b1 h1 s4096 d576/512 bf16 kv=paged:16 seqused out=fp32", "fwd b1 h1 s4096 d288 bf16 alibi",
        "fwd b1 h1 s4096 d128 bf16 kv=paged:16", "fwd b1 h1 s4096 d64 bf16 kv=paged:8 causal_bottom_right",
        "fwd b1 h1 s4096 d128 bf16 kv_dtype=fp8_e4m3 kv=paged:16 seqused causal_bottom_right",
        "fwd h1 d64 fp16 kv_dtype=fp8_e4m3 kv=paged:16 varlen=128,512 seqused=512,512 v_mean=bhd",
        "fwd b1 h1 s4096 d192/128 bf16 kv_dtype=fp8_e4m3 causal_bottom_right"));

// Three warpgroups waste more of a short reach, and have no registers for transforms (README.md of sm90).
TEST(Sm90Table, ThreeWarpgroupsAtD128AreForLongPlainProblems) {
  const auto groups = [](const std::string& line) { return sm90::select_config(parse_problem(line)).value().groups; };
  EXPECT_EQ(groups("s16384 d128 bf16 causal_bottom_right sinks"), 3);
  EXPECT_EQ(groups("s4096 d128 bf16"), 3);
  EXPECT_EQ(groups("s16384 d128 bf16 causal_bottom_right window=9000:0"), 3);
  EXPECT_EQ(groups("s16384 d128 bf16 causal_bottom_right out=fp32 partial lse"), 3);
  for (const char* line : {"s1024 d128 bf16", "s4096 d128 bf16 causal_bottom_right", "s16384 d128 bf16 window=1024:0",
                           "s16384 d128 bf16 softcap=30", "s16384 d128 bf16 out=fp32", "d128 bf16 varlen=9000,9000"})
    EXPECT_EQ(groups(line), 2) << line;
}

TEST(MaskBits, Compiles) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  for (const char* arch : {"sm_80", "sm_90a", "sm_120"})
    EXPECT_EQ(cuda::wrong_code(cuda::compile(cuda::mask_program(arch)), {256, {}}), "") << arch;
}

// The kernels around attention, for an architecture; More runs in ./dev test all.
class SmallKernels : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string why; !cuda::nvrtc(&why)) GTEST_SKIP() << why;
  }
};
INSTANTIATE_TEST_SUITE_P(Hopper, SmallKernels, testing::Values("sm_90"));
INSTANTIATE_TEST_SUITE_P(More, SmallKernels, testing::Values("sm_80", "sm_120"));

TEST_P(SmallKernels, MergeCompilesToTheCodeThatWasMeant) {
  for (const char* line : {"merge n2 d128 bf16", "merge n200 d256 fp32", "merge n2 d64 fp32 out=bf16",
                           "merge n2 d33 fp16", "merge n2 d0 fp32", "merge n2 d576 bf16 out=fp32"}) {
    const MergeConfig config = cuda::select_merge(parse_problem(line)).value();
    cuda::CodeGate gate{256, {}};
    if (config.dim > 0) gate.instructions = {"LDG.E.EF.128", "SHFL"};
    EXPECT_EQ(cuda::wrong_code(cuda::compile(cuda::merge_program(config, GetParam())), gate), "")
        << GetParam() << " " << line;
  }
}

TEST_P(SmallKernels, SoftmaxRowsCompilesToTheCodeThatWasMeant) {
  for (const char* line : {"softmax s999x4096 bf16", "softmax s999x1000 fp32 lse", "softmax s999x50257 bf16 log",
                           "softmax s999x100000 fp32", "softmax s5x1000000 bf16", "softmax_bwd s999x4096 bf16",
                           "softmax s999x128 bf16", "softmax s999x32768 fp16"}) {
    const cuda::SoftmaxPlan plan = cuda::select_softmax(parse_problem(line)).value();
    const int most = std::string_view(GetParam()) == "sm_120" ? 1536 : 2048;  // threads that a multiprocessor has
    const cuda::CodeGate gate{std::min(plan.config.resident(), most), {"LDG.E.128", "STG.E.128"}};
    EXPECT_EQ(cuda::wrong_code(cuda::compile(cuda::softmax_program(plan.config, GetParam())), gate), "")
        << GetParam() << " " << line;
  }
}

TEST_P(SmallKernels, FlatGemmCompilesToTheCodeThatWasMeant) {
  for (const char* line : {"flat_gemm m1 n4096 k4096 bf16", "flat_gemm m16 n4096 k4096 fp16 column_bias",
                           "flat_gemm m64 n4096 k4096 bf16 out=fp32"}) {
    const cuda::FlatGemmPlan plan = cuda::select_flat_gemm(parse_problem(line), 101376, 132).value();
    const cuda::CodeGate gate{kGemmThreads, {"LDGSTS.E.BYPASS.LTC128B.128", "LDSM.16.M88.4", "HMMA.16816.F32"}};
    EXPECT_EQ(cuda::wrong_code(cuda::compile(cuda::flat_gemm_program(plan.config, GetParam())), gate), "")
        << GetParam() << " " << line;
  }
}

TEST(Gemv, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  for (const char* line : {"linear m1 n4096 k4096 bf16", "linear m4 n4096 k4096 fp32 column_bias"}) {
    const GemvConfig config = cuda::select_gemv(parse_problem(line)).value();
    const cuda::CodeGate gate{3 * 32 * kGemvWarps, {"LDG.E.EF.128"}};  // three blocks
    EXPECT_EQ(cuda::wrong_code(cuda::compile(cuda::gemv_program(config, "sm_90")), gate), "") << line;
  }
}

TEST_P(SmallKernels, AppendsCompileWithoutASpill) {
  using enum ScalarType;
  for (const AppendConfig& config : {AppendConfig{f32, f32, f32, false, false, false, false, 8},
                                     {f32, f32, f32, true, true, true, false, 1},
                                     {bf16, bf16, f32, true, false, true, false, 8},
                                     {bf16, bf16, bf16, false, true, true, false, 8},
                                     {f16, f16, f16, true, true, false, false, 1},
                                     {f16, f16, none, false, false, true, false, 8},
                                     {bf16, e4m3, f32, false, true, true, false, 8},
                                     {bf16, bf16, bf16, false, false, false, true, 8},
                                     {f16, e4m3, f32, true, false, false, true, 8},
                                     {f32, f32, none, false, false, false, true, 1}}) {
    cuda::CodeGate gate{kAppendThreads, {}};
    if (config.at_once == 8) gate.instructions = {"LDG.E.128", config.cache == e4m3 ? "STG.E.64" : "STG.E.128"};
    const std::string said = cuda::wrong_code(cuda::compile(cuda::append_program(config, GetParam())), gate);
    // The division of 64 bits is a call, which has room for 40 registers: two words may lie in memory around it.
    if (said.find(" 8 bytes spill stores, 8 bytes spill loads") != said.npos) continue;
    EXPECT_EQ(said, "") << GetParam();
  }
}

TEST_P(SmallKernels, RowsCompileToTheCodeThatWasMeant) {
  using enum ScalarType;
  using enum RowsWork;
  for (const RowsConfig& config : {RowsConfig{bf16, bf16, copy, 8},
                                   {f16, f16, copy, 1},
                                   {e4m3, e4m3, copy, 16},
                                   {f32, bf16, copy, 8},
                                   {f32, f16, copy, 1},
                                   {f32, f32, add, 4},
                                   {f32, f32, add, 1},
                                   {f32, f32, take_larger, 1},
                                   {f32, f32, copy, 4}}) {
    cuda::CodeGate gate{4 * kRowsThreads, {}};
    if (config.from == config.to && config.at_once > 1 && config.work == copy)
      gate.instructions = {"LDG.E.128", "STG.E.128"};
    EXPECT_EQ(cuda::wrong_code(cuda::compile(cuda::rows_program(config, GetParam())), gate), "") << GetParam();
  }
}

TEST(Program, KeyNamesEverythingTheCodeDependsOn) {
  const cuda::KernelProgram base{"cuda/sm90/forward/forward.cuh", "attention_forward", "config", "sm_90a", "", ""};
  std::set<std::string> keys{cuda::key_of(base)};
  for (int i = 0; i < 6; ++i) {
    cuda::KernelProgram other = base;
    std::string* const fields[] = {&other.file, &other.entry,     &other.config,
                                   &other.arch, &other.user_code, &other.generated};
    *fields[i] += "x";
    EXPECT_TRUE(keys.insert(cuda::key_of(other)).second);
  }
  EXPECT_EQ(cuda::key_of(base), cuda::key_of(base));
}

TEST(Program, ACompilerErrorShowsTheConfigAndTheLog) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const std::string said = test::sentence_of(
      [] { cuda::compile({"cuda/device/types.cuh", "none", "int wrong = \"text\"; // here", "sm_90a", ""}); });
  EXPECT_NE(said.find("int wrong = \"text\""), said.npos) << said;
  EXPECT_NE(said.find("error"), said.npos) << said;
}

TEST(Program, DeviceTextsAreEmbedded) {
  EXPECT_NE(cuda::device_source("algebra/online_softmax.hpp").find("finite_ref"), std::string_view::npos);
  EXPECT_THROW(cuda::device_source("algebra/nothing.hpp"), Error);
}

}  // namespace
}  // namespace onepass
