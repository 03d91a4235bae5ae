// The mma.sync family's table: every row compiles, and to the code that was meant, for the devices that take it. Needs
// NVRTC, not a GPU; what compiles is skipped where it is missing.
#include <gtest/gtest.h>

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/sm80/forward/forward.hpp"
#include "sm80_cases.hpp"

namespace onepass {
namespace {

class Sm80Forward : public testing::TestWithParam<Sm80Case> {};

TEST_P(Sm80Forward, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const auto& [device, line] = GetParam();
  const Problem p = parse_problem(std::string(line) + " cuda");
  const sm80::ForwardConfig config = sm80::select_config(p, device.shared_bytes).value();
  const ForwardFeatures features = cuda::features_of(p);
  EXPECT_LE(sm80::layout_of(features, config).total, device.shared_bytes);
  const cuda::Cubin code = cuda::compile(sm80::program_of(features, config, device.arch));
  EXPECT_EQ(cuda::wrong_code(code, sm80_gate(p, config)), "");
}

// More and Table32 run in ./dev test all: a line for each row of the table that a device can take, and the features
// spread over the devices.
INSTANTIATE_TEST_SUITE_P(
    Table, Sm80Forward,
    testing::Values(
        Sm80Case{kA100, "fwd h8/2 d128 bf16 varlen=128,512 seqused=900,512 kv=paged:16 tree=64 causal_bottom_right"},
        Sm80Case{kAmpere,
                 "fwd b1 h1 s4096 d64 bf16 softcap=20 alibi sinks mask=b1qk bias=fp32:1hqk dropout=0.2 window=50:40"},
        Sm80Case{kAda, "fwd b1 h1 s4096 d256 bf16"},
        Sm80Case{
            kBlackwell,
            "fwd b2 h4 s67 d128 bf16 strides=q:80000,400,1601;k:80000,400,-1601;v:80000,400,1601;o:80000,400,1601"}));
INSTANTIATE_TEST_SUITE_P(
    More, Sm80Forward,
    testing::Values(
        Sm80Case{kHopper, "fwd b1 h1 s4096 d128 bf16 causal_bottom_right"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d256 bf16 window=99:0"},
        Sm80Case{kHopper, "fwd h1 d128 bf16 varlen=128,512 causal_bottom_right"},
        Sm80Case{kA100, "fwd h8/2 s4096x8192 d128 bf16 kv=paged:16 causal_bottom_right"},
        Sm80Case{kAda, "fwd h8/2 s4096x8192 d64 bf16 kv=paged:16 causal_bottom_right"},
        Sm80Case{kHopper, "fwd h8/2 s4096x8192 d256 bf16 kv=paged:16 window=99:0"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d128 bf16 bias=fp32:bhqk"},
        Sm80Case{kAda, "fwd b1 h1 s4096 d192 bf16 causal_bottom_right"},
        Sm80Case{kAda, "fwd b4 h16 s4096 d128 bf16 causal_bottom_right"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d128 bf16 causal_bottom_right entropy"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d192/128 bf16"}, Sm80Case{kA100, "fwd b1 h1 s4096 d64 bf16 entropy"},
        Sm80Case{kAda, "fwd b1 h1 s4096 d256 bf16 causal_bottom_right entropy"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d512 bf16 softcap=20 bias=fp32:bhqk entropy"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d64 fp32 causal_bottom_right entropy"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d128 fp32 entropy row_max"},
        Sm80Case{kAda, "fwd b1 h1 s4096 d320 bf16 causal_bottom_right"}, Sm80Case{kA100, "fwd b1 h1 s4096 d512 fp16"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d512 bf16 alibi"}, Sm80Case{kHopper, "fwd b1 h1 s4096 d64 bf16"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d64 fp16 causal_top_left"}, Sm80Case{kHopper, "fwd b1 h1 s4096 d128 bf16"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d128 bf16 out=fp32 sinks"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d128 bf16 dropout=0.1"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d64 bf16 dropout=0.1 dropout_seed"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d256 bf16 alibi"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d64 bf16 tree=64 causal_bottom_right"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d256 bf16 tree=64 causal_bottom_right"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d64 bf16 causal_bottom_right"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d128 bf16 causal_bottom_right"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d256 fp16 causal_bottom_right"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d128 bf16 row_max"}, Sm80Case{kA100, "fwd b1 h1 s4096 d33/7 fp16 window=9:9"},
        Sm80Case{kAmpere, "fwd b1 h1 s4096 d128 bf16 window=100:30"},
        Sm80Case{kAmpere, "fwd b1 h1 s4096 d256 bf16 softcap=20 mask=b1qk"},
        Sm80Case{kAda, "fwd h1 d256 fp16 varlen=128,512"},
        Sm80Case{kBlackwell, "fwd b1 h1 s4096 d128 fp16 causal_bottom_right"},
        Sm80Case{kBlackwell, "fwd b1 h1 s4096 d256 bf16"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d512 bf16 causal_bottom_right"},
        Sm80Case{kHopper, "fwd h1 d300/280 bf16 varlen=128,512 window=99:0"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d576/512 bf16 softcap=20 mask=b1qk"},
        Sm80Case{kBlackwell, "fwd b1 h1 s4096 d512 fp16 dropout=0.1"}));

INSTANTIATE_TEST_SUITE_P(
    Table32, Sm80Forward,
    testing::Values(
        Sm80Case{kHopper, "fwd b1 h1 s4096 d64 fp32"}, Sm80Case{kHopper, "fwd b1 h1 s4096 d128 fp32"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d128 fp32 causal_bottom_right"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d256 fp32 window=99:0"}, Sm80Case{kHopper, "fwd b1 h1 s4096 d1/256 fp32"},
        Sm80Case{kHopper, "fwd h1 d128 fp32 varlen=128,512"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d128 fp32 dropout=0.1"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d59/111 fp32 alibi causal_top_left"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d64 fp32 causal_bottom_right"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d192/128 fp32 causal_bottom_right"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d128 fp32 bias=fp32:bhqk"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d256 fp32 causal_bottom_right"}, Sm80Case{kAmpere, "fwd b1 h1 s4096 d64 fp32"},
        Sm80Case{kAmpere, "fwd b1 h1 s4096 d128 fp32 window=100:30"},
        Sm80Case{kAmpere,
                 "fwd b1 h1 s4096 d64 fp32 softcap=20 alibi sinks mask=b1qk bias=fp16:1hqk dropout=0.2 window=50:40"},
        Sm80Case{kAda, "fwd b1 h1 s4096 d256 fp32 mask=b1qk"}, Sm80Case{kHopper, "fwd b1 h1 s4096 d512 fp32 alibi"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d64 fp32 precision=tf32"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d128 fp32 precision=tf32 causal_bottom_right"},
        Sm80Case{kA100, "fwd b1 h1 s4096 d128 fp32 precision=tf32 bias=fp32:bhqk"},
        Sm80Case{kAda, "fwd b1 h1 s4096 d256 fp32 precision=tf32 softcap=20"},
        Sm80Case{kHopper, "fwd b1 h1 s4096 d512 fp32 precision=tf32"}, Sm80Case{kA100, "fwd b1 h1 s4096 d320 fp32"},
        Sm80Case{kAda, "fwd b1 h1 s4096 d512 fp32 window=9:9"},
        Sm80Case{kBlackwell, "fwd b1 h1 s4096 d128 fp32 causal_bottom_right"},
        Sm80Case{kBlackwell,
                 "fwd b1 h1 s4096 d128 fp32 softcap=20 alibi sinks mask=b1qk bias=fp16:1hqk dropout=0.2 window=50:40"},
        Sm80Case{kBlackwell,
                 "fwd b2 h4 s67 d64 fp32 "
                 "strides=q:80000,400,1601;k:80000,400,-1601;v:80000,400,1601;o:80000,400,1601"}));

TEST(Sm80Table, EveryRowFitsTheDevicesThatTakeIt) {
  for_dims_and_devices("fwd", [](const Generation& device, const std::string& line) {
    const Problem p = parse_problem(line);
    const auto c = sm80::select_config(p, device.shared_bytes);
    ASSERT_TRUE(c) << device.arch << " " << line << ": " << c.refusal();
    EXPECT_LE(c->blocks * (sm80::layout_of(cuda::features_of(p), *c).total + 1024), device.shared_bytes + 1024)
        << device.arch << " " << line;
  });
}

// With pages a CTA has as many rows as without, and two or more share a multiprocessor up to head dim 128.
TEST(Sm80Table, PagesTakeNoRowsAway) {
  for (const Generation& device : {kHopper, kA100, kAda}) {
    for (const char* dim : {"d64", "d128"}) {
      const sm80::ForwardConfig c =
          sm80::select_config(
              parse_problem(text("h8/2 s4096x8192 ", dim, " bf16 kv=paged:16 causal_bottom_right cuda")),
              device.shared_bytes)
              .value();
      EXPECT_EQ(c.block_m(), 128) << device.arch << " " << dim;
      EXPECT_GE(c.blocks, 2) << device.arch << " " << dim;
    }
  }
}

TEST(Sm80Table, CopiesAreAsLargeAsStridesAllow) {
  const auto copy_bytes = [](const std::string& strides, const std::string& dtype = "fp16") {
    const Problem p = parse_problem("b2 h2 s9 d40 " + dtype + " cuda strides=" + strides);
    const sm80::ForwardConfig c = sm80::select_config(p, 101376).value();
    return std::pair{c.copy_bytes, c.staged};
  };
  EXPECT_EQ(copy_bytes("q:4000,400,40;k:4000,400,40;v:4000,400,40;o:4000,400,40"), (std::pair{16, true}));
  EXPECT_EQ(copy_bytes("q:4000,400,40;k:4000,400,-44;v:4000,400,40;o:4000,400,40"), (std::pair{8, true}));
  EXPECT_EQ(copy_bytes("q:4000,400,40;k:4000,400,40;v:4000,402,0;o:4000,400,44"), (std::pair{4, false}));
  EXPECT_EQ(copy_bytes("q:4001,400,40;k:4000,400,40;v:4000,400,40;o:4000,400,40"), (std::pair{2, true}));
  EXPECT_EQ(copy_bytes("q:4001,400,40;k:4000,400,40;v:4000,400,40;o:4000,400,44", "fp32"), (std::pair{4, true}));
  EXPECT_EQ(copy_bytes("q:4000,400,44;k:4000,400,40;v:4000,400,40;o:4000,400,42", "fp32"), (std::pair{16, false}));
}

TEST(Sm80Table, RefusesWithASentence) {
  const auto refusal = [](const std::string& line, int shared_bytes) {
    return sm80::select_config(parse_problem(line + " cuda"), shared_bytes).refusal();
  };
  EXPECT_NE(refusal("b1 h1 s9 d256 fp32", 49152).find("49152 bytes"), std::string::npos);
  EXPECT_NE(refusal("b1 h1 s9 d576/512 fp32", 101376).find("576/512"), std::string::npos);
  EXPECT_NE(refusal("b1 h1 s9 d256 bf16", 32768).find("32768 bytes"), std::string::npos);
  EXPECT_NE(refusal("b1 h1 s1x3000000000 d8 bf16 strides=q:0,1000,8;k:0,0,0;v:0,0,0;o:0,1000,8", 101376).find("seq_k"),
            std::string::npos);
}

}  // namespace
}  // namespace onepass
