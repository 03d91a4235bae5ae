// The mma.sync family's backward table: every row compiles, and to the code that was meant, for the devices that take
// it. Needs NVRTC, not a GPU; what compiles is skipped where it is missing.
#include "cuda/sm80/backward/backward.hpp"

#include <string_view>

#include <gtest/gtest.h>

#include "backward_gate.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/driver/api.hpp"
#include "sm80_cases.hpp"

namespace onepass {
namespace {

class Sm80Backward : public testing::TestWithParam<Sm80Case> {};

TEST_P(Sm80Backward, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const auto& [device, line] = GetParam();
  const Problem p = parse_problem("bwd " + std::string(line) + " cuda");
  const BackwardFeatures features = cuda::backward_features_of(p);
  const sm80::BackwardConfig config = sm80::select_config(p, features, device.shared_bytes).value();
  EXPECT_LE(sm80::layout_of(features, config).total, device.shared_bytes);
  const BackwardShape shape = sm80::shape_of(p, config);
  const std::string mods = cuda::mods_source(p, 1);
  cuda::CodeGate gate = sm80_gate(p, config);
  if ((config.row_tiles == 2 && config.share > 1) || config.held) gate.spilled = 96;
  if (p.dtype == DType::f32 && p.dim_v > 256) gate.spilled = 128;
  for (const BackwardFeatures& part : sm80::parts_of(features))
    EXPECT_EQ(cuda::wrong_code(cuda::compile(sm80::program_of(part, shape, config, device.arch, mods)), gate), "");
  if (features.dbias) {
    EXPECT_EQ(cuda::wrong_code(cuda::compile(sm80::program_of(features, shape, config, device.arch, mods, true)), gate),
              "");
  }
  // With 64 registers for four CTAs of a packed batch, sm_120's code keeps two words of a warp's 4 KB in local memory.
  const int spilled = features.forward.attention.packed && std::string_view(device.arch) == "sm_120" ? 8 : 0;
  cuda::expect_code(cuda::backward_programs(features, shape, sm80::kSumTile, device.arch, mods), spilled);
}

constexpr char kEverything64[] =
    "b1 h1 s4096 d64 bf16 softcap=20 alibi sinks mask=b1qk bias=fp32:1hqk dropout=0.2 window=50:40 "
    "grads=dq,dk,dv,dbias,dsinks,dalibi_slopes";
constexpr char kEverything256[] =
    "b1 h1 s4096 d256 bf16 softcap=20 alibi sinks mask=b1qk bias=fp32:1hqk dropout=0.2 window=50:40 "
    "grads=dq,dk,dv,dbias,dsinks,dalibi_slopes";
constexpr char kEverything64Fp32[] =
    "b1 h1 s4096 d64 fp32 softcap=20 alibi sinks mask=b1qk bias=fp32:1hqk dropout=0.2 window=50:40 "
    "grads=dq,dk,dv,dbias,dsinks,dalibi_slopes";
constexpr char kEverything128Fp32[] =
    "b1 h1 s4096 d128 fp32 softcap=20 alibi sinks mask=b1qk bias=fp32:1hqk dropout=0.2 window=50:40 "
    "grads=dq,dk,dv,dbias,dsinks,dalibi_slopes";

// One line for each row of the table that a device can take, and the features spread over the devices.
INSTANTIATE_TEST_SUITE_P(
    Table, Sm80Backward,
    testing::Values(
        Sm80Case{kHopper, "b1 h1 s4096 d64 bf16"}, Sm80Case{kA100, "b1 h1 s4096 d64 bf16 entropy dentropy"},
        Sm80Case{kA100, "b1 h1 s4096 d128 bf16 causal_bottom_right entropy dentropy"},
        Sm80Case{kAda, "b1 h1 s4096 d256 bf16 entropy dentropy"},
        Sm80Case{kHopper, "b1 h1 s4096 d512 bf16 causal_bottom_right entropy dentropy"},
        Sm80Case{kHopper, "b1 h1 s4096 d128 fp32 entropy dentropy"},
        Sm80Case{kHopper, "b1 h1 s4096 d64 fp16 causal_top_left deterministic"},
        Sm80Case{kHopper, "b1 h1 s4096 d128 bf16 causal_bottom_right"}, Sm80Case{kHopper, "b1 h1 s4096 d128 bf16"},
        Sm80Case{kHopper, "b1 h1 s4096 d128 bf16 bias=bf16:1hqk mask=11qk dropout=0.1 grads=dq,dk,dv,dbias"},
        Sm80Case{kA100, "b1 h1 s4096 d128 bf16 dropout=0.1 dropout_seed"},
        Sm80Case{kHopper, "b1 h1 s4096 d128 fp16 softcap=20 alibi causal_bottom_right"},
        Sm80Case{kHopper, "b1 h1 s4096 d256 bf16 window=99:0"}, Sm80Case{kHopper, kEverything256},
        Sm80Case{kHopper,
                 "b2 h4 s67 d256 bf16 strides=q:160000,800,3201;k:160000,800,3201;v:160000,800,3201;o:160000,800,3201"},
        Sm80Case{kA100, "b1 h1 s4096 d128 bf16 causal_bottom_right"}, Sm80Case{kA100, "b1 h1 s4096 d256 bf16"},
        Sm80Case{kA100, "b1 h1 s4096 d128 bf16 out=fp32 grad=fp32"},
        Sm80Case{kA100, "h1 d128 fp16 varlen=128,512 causal_bottom_right deterministic dlse"},
        Sm80Case{kA100, kEverything64},
        Sm80Case{kA100,
                 "b1 h1 s4096 d128 bf16 score_mod={score + 0.1 * tanh(score)} "
                 "mask_mod={q_index > k_index} softcap=20"},
        Sm80Case{kAmpere, "b1 h1 s4096 d128 bf16 window=100:30"}, Sm80Case{kAda, "b1 h1 s4096 d128 bf16"},
        Sm80Case{kBlackwell, "b1 h1 s4096 d128 bf16 bias=bf16:1hqk mask=11qk dropout=0.1 grads=dq,dk,dv,dbias"},
        Sm80Case{kAda, "b1 h1 s4096 d64 bf16 causal_bottom_right"}, Sm80Case{kAmpere, kEverything64},
        Sm80Case{kBlackwell, "h1 d64 bf16 varlen=128,512 causal_bottom_right deterministic"},
        Sm80Case{kAda, "b1 h1 s4096 d256 fp16 causal_bottom_right"}, Sm80Case{kAda, kEverything256},
        Sm80Case{kAda, "b1 h1 s4096 d256 bf16 out=fp32 grad=fp32"},
        Sm80Case{kHopper, "b1 h1 s4096 d512 bf16 causal_bottom_right"},
        Sm80Case{kHopper, "b1 h1 s4096 d576/512 bf16 softcap=20 alibi grads=dq,dk,dv,dalibi_slopes"},
        Sm80Case{kA100, "h1 d512 fp16 varlen=128,512 out=fp32 grad=fp32 deterministic"},
        Sm80Case{kAda, "b1 h1 s4096 d512 bf16 window=100:30"},
        Sm80Case{kBlackwell,
                 "b2 h4 s67 d128 bf16 strides=q:80000,400,1601;k:80000,400,-1601;v:80000,400,1601;o:80000,400,1601"}));

INSTANTIATE_TEST_SUITE_P(
    Table32, Sm80Backward,
    testing::Values(Sm80Case{kHopper, "b1 h1 s4096 d64 fp32"},
                    Sm80Case{kHopper, "b1 h1 s4096 d64 fp32 causal_bottom_right deterministic"},
                    Sm80Case{kHopper, "h1 d64 fp32 varlen=128,512 window=9:9"},
                    Sm80Case{kHopper, "b1 h1 s4096 d128 fp32 causal_bottom_right"},
                    Sm80Case{kHopper, "b1 h1 s4096 d256 fp32 causal_bottom_right deterministic"},
                    Sm80Case{kA100, "b1 h1 s4096 d64 fp32"}, Sm80Case{kA100, "b1 h1 s4096 d256 fp32 softcap=20 alibi"},
                    Sm80Case{kA100, kEverything64Fp32}, Sm80Case{kA100, kEverything128Fp32},
                    Sm80Case{kHopper, "b1 h1 s4096 d512 fp32 causal_bottom_right"},
                    Sm80Case{kHopper, "b1 h1 s4096 d64 fp32 precision=tf32"},
                    Sm80Case{kHopper, "b1 h1 s4096 d128 fp32 precision=tf32 causal_bottom_right"},
                    Sm80Case{kA100, "b1 h1 s4096 d256 fp32 precision=tf32"},
                    Sm80Case{kAmpere, "b1 h1 s4096 d128 fp32 precision=tf32 softcap=20 alibi"},
                    Sm80Case{kHopper, "b1 h1 s4096 d512 fp32 precision=tf32"},
                    Sm80Case{kA100, "b1 h1 s4096 d320 fp32 alibi"}, Sm80Case{kAmpere, "b1 h1 s4096 d64 fp32"},
                    Sm80Case{kAda, "b1 h1 s4096 d128 fp32 window=9:9"}, Sm80Case{kBlackwell, "b1 h1 s4096 d160 fp32"}));

TEST(Sm80BackwardTable, EveryRowFitsTheDevicesThatTakeIt) {
  for_dims_and_devices("bwd", [](const Generation& device, const std::string& line) {
    const Problem p = parse_problem(line);
    const BackwardFeatures f = cuda::backward_features_of(p);
    const auto c = sm80::select_config(p, f, device.shared_bytes);
    ASSERT_TRUE(c) << device.arch << " " << line << ": " << c.refusal();
    EXPECT_LE(c->blocks * (sm80::layout_of(f, *c).total + 1024), device.shared_bytes + 1024)
        << device.arch << " " << line;
  });
}

}  // namespace
}  // namespace onepass
