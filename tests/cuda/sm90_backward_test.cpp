// The Hopper backward's kernels compile, and to the code that was meant. Needs NVRTC, not a GPU; skipped where it is
// missing.
#include <gtest/gtest.h>

#include "backward_gate.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/sm90/backward/backward.hpp"
#include "problem/problem.hpp"

namespace onepass {
namespace {

class Sm90Backward : public testing::TestWithParam<const char*> {};

TEST_P(Sm90Backward, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const Problem p = parse_problem(std::string(GetParam()) + " cuda");
  const BackwardFeatures features = cuda::backward_features_of(p);
  sm90::BackwardConfig config = sm90::select_config(p, features).value();
  EXPECT_LE(sm90::layout_of(features, config).total, 232448);  // shared memory of a Hopper block
  const BackwardShape shape = sm90::shape_of(p, config);
  const std::string mods = cuda::mods_source(p, 1);
  const cuda::CodeGate gate{384, {"HGMMA", "UTMALDG", config.split && !config.paired ? "REDG" : "UBLKRED"}};
  EXPECT_EQ(cuda::wrong_code(cuda::compile(sm90::program_of(features, shape, config, mods)), gate), "");
  cuda::expect_code(cuda::backward_programs(features, shape, sm90::kSumTile, "sm_90", mods));
  config.guarded = true;  // as with more work
  config.zeroes = sm90::may_zero(p, features, config);
  const sm90::BackwardConfig careful = sm90::careful_of(config);
  EXPECT_LE(sm90::layout_of(features, careful).total, 232448);
  const BackwardShape guarded = sm90::shape_of(p, config);
  EXPECT_EQ(cuda::wrong_code(cuda::compile(sm90::program_of(features, guarded, config, mods)), gate), "");
  // Some careful kernels of d128 spill 8 bytes, which no finite call pays for.
  const std::string wrong = cuda::wrong_code(cuda::compile(sm90::program_of(features, guarded, careful, mods)), gate);
  EXPECT_TRUE(wrong.empty() || wrong.starts_with("there is a stack or a spill")) << "careful: " << wrong;
  const cuda::KernelProgram pre = cuda::backward_programs(features, guarded, sm90::kSumTile, "sm_90", mods).pre;
  EXPECT_EQ(cuda::wrong_code(cuda::compile(pre), {256, {}}), "");
}

// A line for each config, and the features by their registers: one at a time, windows, pairs.
INSTANTIATE_TEST_SUITE_P(
    Table, Sm90Backward,
    testing::Values(
        "bwd b1 h1 s4096 d64 bf16", "bwd b1 h1 s4096 d64 fp16 causal_bottom_right",
        "bwd b1 h1 s4096 d64 bf16 entropy dentropy", "bwd b1 h1 s4096 d128 bf16 entropy dentropy",
        "bwd b1 h1 s4096 d64 bf16 softcap=30 alibi entropy dentropy grads=dq,dk,dv,dalibi_slopes",
        "bwd b1 h1 s4096 d128 bf16 causal_bottom_right entropy dentropy", "bwd b1 h1 s4096 d192 bf16 entropy dentropy",
        "bwd b1 h1 s4096 d160 bf16 entropy dentropy", "bwd b1 h1 s4096 d256 bf16 mask=bhqk entropy dentropy",
        "bwd b1 h1 s4096 d192/128 bf16 causal_bottom_right entropy dentropy",
        "bwd b1 h1 s4096 d256 bf16 entropy dentropy", "bwd b1 h1 s4096 d128 bf16 softcap=20 entropy dentropy",
        "bwd h1 d128 bf16 varlen=128,512 causal_bottom_right entropy dentropy",
        "bwd b1 h1 s4096 d128 bf16 mask=b1qk dropout=0.1 entropy dentropy",
        "bwd b1 h1 s4096 d128 bf16 bias=bf16:bhqk entropy dentropy grads=dq,dk,dv,dbias",
        "bwd h4/2 d64 bf16 varlen=128,512 causal_bottom_right", "bwd b1 h1 s4096 d64 bf16 window=99:9 deterministic",
        "bwd b1 h1 s4096 d64 bf16 deterministic", "bwd b1 h1 s4096 d64 bf16 mask=b1qk dropout=0.1",
        "bwd b1 h1 s4096 d64 bf16 softcap=30 alibi grads=dq,dk,dv,dalibi_slopes",
        "bwd b1 h1 s4096 d64 bf16 bias=bf16:bhqk grads=dq,dk,dv,dbias", "bwd b1 h1 s4096 d128 bf16",
        "bwd b1 h1 s4096 d64 bf16 score_mod={score + 0.1 * tanh(score)} mask_mod={k_index % 3 != 1}",
        "bwd b1 h1 s4096 d128 fp16 causal_bottom_right grad=fp32", "bwd b1 h8/2 s4096 d128 bf16 window=99:0",
        "bwd b1 h1 s4096 d128 bf16 causal_bottom_right deterministic",
        "bwd b1 h1 s4096 d128 bf16 window=99:9 deterministic", "bwd h1 d128 bf16 varlen=128,512 window=99:9",
        "bwd h1 d128 bf16 varlen=128,512 deterministic", "bwd b1 h1 s4096 d128 bf16 mask=b1qk",
        "bwd b1 h1 s4096 d128 bf16 dropout=0.1 causal_bottom_right",
        "bwd b1 h1 s4096 d128 bf16 alibi causal_bottom_right grads=dq,dk,dv,dalibi_slopes",
        "bwd b1 h1 s4096 d128 bf16 bias=bf16:bhqk grads=dq,dk,dv,dbias",
        "bwd b1 h1 s4096 d128 bf16 bias=fp32:1hqk causal_bottom_right grads=dq,dk,dv,dbias",
        "bwd b1 h8/2 s4096 d128 bf16 mask=b1qk dropout=0.1 window=99:9",
        "bwd b1 h1 s4096 d128 bf16 bias=bf16:1hqk dropout=0.1 causal_bottom_right",
        "bwd b1 h8/2 s4096 d128 bf16 bias=bf16:1hqk mask=bhqk window=99:9 dlse grads=dq,dk,dv,dbias",
        "bwd b1 h1 s4096 d128 bf16 bias=bf16:1hqk dropout=0.1 grads=dq,dk,dv,dbias",
        "bwd b1 h1 s4096 d128 bf16 softcap=30", "bwd b1 h1 s4096 d128 bf16 mask=b1qk dropout=0.1 alibi",
        "bwd b1 h1 s4096 d128 bf16 score_mod={score + 0.1 * tanh(score)}", "bwd b1 h1 s4096 d96 bf16",
        "bwd b1 h1 s4096 d128 bf16 mask_mod={k_index % 3 != 1}", "bwd b1 h1 s4096 d192/128 bf16 causal_bottom_right",
        "bwd b1 h1 s4096 d192 bf16", "bwd h8/2 d192/128 bf16 varlen=128,512 window=99:9 dlse grad=fp32",
        "bwd b1 h1 s4096 d192 bf16 deterministic", "bwd b1 h1 s4096 d160/72 bf16 window=99:9",
        "bwd b1 h1 s4096 d256 bf16", "bwd b1 h1 s4096 d256 bf16 causal_bottom_right",
        "bwd h1 d256 bf16 varlen=128,512 causal_bottom_right",
        "bwd b1 h1 s4096 d256 bf16 causal_bottom_right deterministic", "bwd b1 h1 s4096 d256 bf16 mask=b1qk",
        "bwd b1 h1 s4096 d128 bf16 dropout=0.1 dropout_seed causal_bottom_right",
        "bwd b1 h1 s4096 d256 bf16 dropout=0.1 dropout_seed", "bwd b1 h1 s4096 d256 bf16 dropout=0.1",
        "bwd b1 h1 s4096 d256 bf16 softcap=30", "bwd b1 h1 s4096 d256 bf16 bias=bf16:bhqk grads=dq,dk,dv,dbias",
        "bwd b1 h1 s4096 d256 bf16 alibi", "bwd b1 h1 s4096 d64 bf16 mask=b1qk deterministic",
        "bwd b1 h1 s4096 d64 bf16 mask=bhqk dropout=0.1 deterministic",
        "bwd b1 h1 s4096 d128 bf16 mask=bhqk deterministic",
        "bwd b1 h8/2 s4096 d128 bf16 mask=b1qk causal_bottom_right deterministic",
        "bwd b1 h1 s4096 d128 bf16 mask=b1qk dropout=0.1 deterministic",
        "bwd b1 h1 s4096 d192/128 bf16 mask=b1qk deterministic", "bwd b1 h1 s4096 d256 bf16 mask=bhqk deterministic"));

}  // namespace
}  // namespace onepass
