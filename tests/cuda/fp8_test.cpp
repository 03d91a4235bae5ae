// The Hopper forward on fp8_e4m3 and quantizing by tiles: kernels compile to the code that was meant, and what is
// refused. Needs NVRTC, not a GPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "code_gate.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/quantize/quantize.hpp"
#include "cuda/sm90/forward/forward.hpp"
#include "problem/problem.hpp"

namespace onepass {
namespace {

class Sm90Fp8 : public testing::TestWithParam<const char*> {};

TEST_P(Sm90Fp8, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const Problem p = parse_problem(std::string(GetParam()) + " cuda");
  const sm90::ForwardConfig config = sm90::select_config(p).value();
  const ForwardFeatures features = sm90::features_of(p, config);
  EXPECT_LE(sm90::layout_of(features, config).total, 232448);  // shared memory of a Hopper block
  const cuda::CodeGate gate{128 * (config.groups + 1), {"QGMMA", "UTMALDG"}};
  EXPECT_EQ(cuda::wrong_code(cuda::compile(sm90::program_of(features, config)), gate), "");
}

// Two configs; the others and the features by their registers are in More, of ./dev test all.
INSTANTIATE_TEST_SUITE_P(
    Table, Sm90Fp8,
    testing::Values("fwd h16/4 d64 fp8_e4m3 varlen=128,700 softcap=20 sinks window=99:9 k_descale=bhn out=fp32",
                    "fwd h16 s4096 d256 fp8_e4m3 causal_bottom_right accumulation=fast"));
INSTANTIATE_TEST_SUITE_P(
    More, Sm90Fp8,
    testing::Values("fwd h16 s1024 d128 fp8_e4m3 mask=b1qk window=99:9 accumulation=fast out=fp16",
                    "fwd h16 s4096 d128 fp8_e4m3 softcap=20 sinks causal_bottom_right out=fp32",
                    "fwd h16 d192/128 fp8_e4m3 varlen=128,700 causal_bottom_right k_descale=bhn",
                    "fwd h16 s4096 d128 fp8_e4m3 v_mean=bhd sinks causal_bottom_right",
                    "fwd h16 s4096 d64 fp8_e4m3 accumulation=fast",
                    "fwd h16 s4096 d64 fp8_e4m3 causal_bottom_right lse",
                    "fwd h16 s1024 d64 fp8_e4m3 causal_bottom_right accumulation=fast",
                    "fwd h16 s4096 d128 fp8_e4m3 accumulation=fast lse",
                    "fwd h16 s4096 d128 fp8_e4m3 causal_bottom_right accumulation=fast",
                    "fwd h16 s1024 d128 fp8_e4m3 causal_bottom_right accumulation=fast",
                    "fwd h16 s1024 d128 fp8_e4m3 softcap=20 sinks accumulation=fast out=fp32",
                    "fwd h16 s1024 d128 fp8_e4m3 q_descale=bhn k_descale=bhn v_descale=bhn accumulation=fast",
                    "fwd h16/4 d128 fp8_e4m3 varlen=128,700 causal_bottom_right accumulation=fast",
                    "fwd h16 s4096 d128 fp8_e4m3", "fwd h16 s4096 d128 fp8_e4m3 causal_bottom_right lse",
                    "fwd h16 s4096 d128 fp8_e4m3 q_descale=bhn k_descale=bhn v_descale=bhn causal_bottom_right",
                    "fwd h16/4 d128 fp8_e4m3 varlen=128,700 causal_bottom_right",
                    "fwd h16 s4096 d128 fp8_e4m3 mask=b1qk", "fwd h16 s4096 d192/128 fp8_e4m3 causal_bottom_right",
                    "fwd h16 s4096 d64 fp8_e4m3 v_mean=bhd accumulation=fast",
                    "fwd h16 s4096 d128 fp8_e4m3 v_mean=bhd accumulation=fast",
                    "fwd h16 s4096 d256 fp8_e4m3 v_mean=bhd accumulation=fast", "fwd h16 s4096 d256 fp8_e4m3",
                    "fwd h16 s4096 d256 fp8_e4m3 accumulation=fast",
                    "fwd h16 s4096 d256 fp8_e4m3 mask=b1qk v_descale=bhn accumulation=fast",
                    "fwd h16 d256 fp8_e4m3 varlen=128,700 causal_bottom_right accumulation=fast"));

class QuantizeTiles : public testing::TestWithParam<const char*> {};

// The programs of each, among them those of attention_fp8; rotated ones multiply by tensor cores.
TEST_P(QuantizeTiles, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const Problem p = parse_problem(std::string(GetParam()) + " cuda");
  const cuda::QuantizePlan plan = cuda::select_quantize(p, 132).value();
  ASSERT_TRUE(plan.config.tiles);
  const cuda::CodeGate gate{2 * kQuantizeTileThreads,
                            p.hadamard ? std::vector<std::string>{"HMMA"} : std::vector<std::string>{}};
  for (const cuda::KernelProgram& program : cuda::quantize_programs(plan, "sm_90a"))
    EXPECT_EQ(cuda::wrong_code(cuda::compile(program), gate), "");
  if (!p.hadamard || !p.descale.blocks) return;
  QuantizeConfig v = plan.config;  // all of an attention by block
  v.hadamard = false;
  const QuantizeConfigs all{{plan.config, plan.config, v}, 3};
  EXPECT_EQ(cuda::wrong_code(cuda::compile(cuda::quantize_program(all, "sm_90a")), gate), "");
}

INSTANTIATE_TEST_SUITE_P(Lines, QuantizeTiles,
                         testing::Values("quantize b4 h16 s4096x128 bf16 descale=bhn hadamard",
                                         "quantize b4 h16 s4096x128 bf16 descale=111"));
INSTANTIATE_TEST_SUITE_P(More, QuantizeTiles,
                         testing::Values("quantize b4 h16 s4096x128 fp16 descale=bh1 hadamard",
                                         "quantize b4 h16 s4096x256 bf16 descale=bhn hadamard",
                                         "quantize b4 h16 s4096x256 bf16 descale=bh1",
                                         "quantize b4 h16 s4096x64 bf16 descale=bhn hadamard"));

// Rows of a tile, where docs/notes/fp8.md has them measured.
TEST(Sm90Fp8Tiles, AreShorterForShortCausalSequencesOfD64) {
  const auto groups = [](const char* line) { return sm90::select_config(parse_problem(line)).value().groups; };
  EXPECT_EQ(groups("fwd h32 s1024 d64 fp8_e4m3 causal_bottom_right accumulation=fast cuda"), 2);
  EXPECT_EQ(groups("fwd h32 s1024 d64 fp8_e4m3 accumulation=fast cuda"), 3);
  EXPECT_EQ(groups("fwd h32 s2048 d64 fp8_e4m3 causal_bottom_right accumulation=fast cuda"), 3);
}

TEST(QuantizeTiles, InTurnLeaveBlocksForAllMultiprocessors) {
  const auto tiles = [](const std::string& line) {
    return cuda::select_quantize(parse_problem("quantize " + line + " cuda"), 132).value().tiles;
  };
  EXPECT_EQ(tiles("b16 h16 s4096x128 bf16 descale=bh1 hadamard"), 8);
  EXPECT_EQ(tiles("b4 h16 s4096x128 bf16 descale=bh1 hadamard"), 8);
  EXPECT_EQ(tiles("b2 h16 s4096x128 bf16 descale=bh1 hadamard"), 4);
  EXPECT_EQ(tiles("b1 h16 s4096x128 bf16 descale=bh1 hadamard"), 1);
  EXPECT_EQ(tiles("b1 h16 s4096x128 bf16 descale=111 hadamard"), 2);
  EXPECT_EQ(tiles("b16 h16 s4096x128 bf16 descale=111"), 4);
  for (const char* const one :
       {"b16 h16 s4096x128 bf16 descale=bhn hadamard", "b16 h16 s4096x128 bf16 descale=bh1",
        "b16 h32 s4096x64 bf16 descale=bh1 hadamard", "b16 h8 s4096x256 bf16 descale=bh1 hadamard"})
    EXPECT_EQ(tiles(one), 1) << one;
}

TEST(Sm90Fp8Refusals, AreSentences) {
  const auto why_not = [](const char* line) { return sm90::select_config(parse_problem(line)).refusal(); };
  EXPECT_EQ(why_not("fwd h2 s1024 d240 fp8_e4m3 cuda"),
            "exact accumulation over more than 512 keys requires dim_v up to 128 or a multiple of 32 (got 240); "
            "accumulation=fast supports it");
  EXPECT_EQ(why_not("fwd h2 s1024 d128 fp8_e4m3 dropout=0.1 cuda"), "with fp8_e4m3 q, does not support dropout");
  EXPECT_EQ(why_not("fwd h2 s1024 d128 bf16 kv_dtype=fp8_e4m3 v_mean=bhd dropout=0.1 cuda"),
            "does not support v_mean with dropout");
  EXPECT_EQ(why_not("fwd h2 s1024 d64 fp8_e4m3 v_mean=bh1 cuda"),
            "the last dimension of v_mean must have stride 1 (got 0)");
  EXPECT_EQ(why_not("fwd h2 s1024 d72 fp8_e4m3 cuda"),
            "TMA needs strides of q that are non-negative multiples of 16 bytes (got 72)");
  EXPECT_EQ(why_not("fwd h2 s100x1024 d72 bf16 kv_dtype=fp8_e4m3 cuda"),
            "TMA needs strides of k that are non-negative multiples of 16 bytes (got 72)");
}

}  // namespace
}  // namespace onepass
