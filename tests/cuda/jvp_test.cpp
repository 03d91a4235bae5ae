// The forward mode's table: every row compiles, and to the code that was meant, for the devices that take it. Needs
// NVRTC, not a GPU; what compiles is skipped where it is missing.
#include "cuda/jvp/jvp.hpp"

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/jvp/sm90/jvp.hpp"
#include "sm80_cases.hpp"

namespace onepass {
namespace {

class CudaJvp : public testing::TestWithParam<Sm80Case> {};

TEST_P(CudaJvp, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const auto& [device, line] = GetParam();
  const Problem p = parse_problem("jvp " + std::string(line) + " cuda");
  const JvpFeatures features = cuda::jvp::features_of(p);
  const std::string mods = cuda::mods_source(p, 1);
  if (std::max(p.dim_qk, p.dim_v) > 256) {
    EXPECT_EQ(cuda::wrong_code(cuda::compile(cuda::jvp::plain_program(features, device.arch, mods)), {256, {"FFMA"}}),
              "");
    return;
  }
  const cuda::jvp::JvpConfig config = cuda::jvp::select_config(p, device.shared_bytes).value();
  EXPECT_LE(cuda::jvp::layout_of(features, config).total, device.shared_bytes);
  const cuda::Cubin code = cuda::compile(cuda::jvp::program_of(features, config, device.arch, mods));
  EXPECT_EQ(cuda::wrong_code(code, sm80_gate(p, config)), "");
}

constexpr char kEverything[] =
    "b1 h1 s4096 d128 bf16 softcap=20 alibi sinks tsinks mask=b1qk bias=fp32:1hqk tbias dropout=0.2 window=50:40";
constexpr char kEverythingFp32[] =
    "b1 h1 s4096 d128 fp32 softcap=20 alibi sinks tsinks mask=b1qk bias=fp32:1hqk tbias dropout=0.2 window=50:40";

// More and Table32 run in ./dev test all: a line for each row of the table that a device can take, and the features
// spread over the devices.
INSTANTIATE_TEST_SUITE_P(
    Table, CudaJvp,
    testing::Values(Sm80Case{kHopper, kEverything},
                    Sm80Case{
                        kBlackwell,
                        "b2 h4 s67 d33/7 bf16 score_mod={score + 0.1 * tanh(score)} mask_mod={q_index > k_index}"}));
INSTANTIATE_TEST_SUITE_P(More, CudaJvp,
                         testing::Values(Sm80Case{kHopper, "b1 h1 s4096 d128 bf16 causal_bottom_right"},
                                         Sm80Case{kA100, "h1 d128 fp16 varlen=128,512 out=fp32 causal_bottom_right"},
                                         Sm80Case{kAda, "b1 h1 s4096 d128 bf16 window=100:30"},
                                         Sm80Case{kHopper, "b1 h1 s4096 d256 bf16"},
                                         Sm80Case{kHopper, "b1 h1 s4096 d512 bf16 softcap=20"},
                                         Sm80Case{kHopper, "b1 h1 s4096 d64 bf16"},
                                         Sm80Case{kA100, "b1 h1 s4096 d64 fp16 alibi causal_top_left"},
                                         Sm80Case{kHopper, "b1 h1 s4096 d128 bf16"},
                                         Sm80Case{kHopper, "b1 h1 s4096 d192/128 bf16 causal_bottom_right"},
                                         Sm80Case{kA100, "b1 h1 s4096 d256 fp16 softcap=20 mask=b1qk"},
                                         Sm80Case{kBlackwell, "b1 h1 s4096 d256 bf16 dropout=0.1"}));
INSTANTIATE_TEST_SUITE_P(Table32, CudaJvp,
                         testing::Values(Sm80Case{kHopper, "b1 h1 s4096 d64 fp32"},
                                         Sm80Case{kA100, "b1 h1 s4096 d64 fp32 softcap=20 alibi sinks mask=b1qk"},
                                         Sm80Case{kHopper, "b1 h1 s4096 d128 fp32"},
                                         Sm80Case{kHopper, "b1 h1 s4096 d128 fp32 causal_bottom_right"},
                                         Sm80Case{kA100, kEverythingFp32},
                                         Sm80Case{kHopper, "b1 h1 s4096 d64 fp32 precision=tf32"},
                                         Sm80Case{kHopper, "b1 h1 s4096 d128 fp32 precision=tf32 softcap=20"},
                                         Sm80Case{kA100, "b1 h1 s4096 d256 fp32 precision=tf32"},
                                         Sm80Case{kAda, "h1 d128 fp32 varlen=128,512 window=9:9"},
                                         Sm80Case{kHopper, "b1 h1 s4096 d256 fp32 causal_bottom_right"},
                                         Sm80Case{kA100, "b1 h1 s4096 d1/256 fp32 dropout=0.1"},
                                         Sm80Case{kBlackwell, "b1 h1 s4096 d256 fp32 score_mod={score * 2}"},
                                         Sm80Case{kHopper, "b1 h1 s4096 d320 fp32 bias=fp32:bhqk tbias"}));

// Hopper's kernel. spilled: bytes of a lane, of what stands outside the walk over the keys or in rare steps of it.
struct Sm90JvpCase {
  const char* line;
  int spilled;
};
std::ostream& operator<<(std::ostream& out, const Sm90JvpCase& c) { return out << '"' << c.line << '"'; }
class CudaSm90Jvp : public testing::TestWithParam<Sm90JvpCase> {};

TEST_P(CudaSm90Jvp, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const Problem p = parse_problem("jvp " + std::string(GetParam().line) + " cuda");
  const JvpFeatures features = cuda::jvp::features_of(p);
  const cuda::jvp::sm90::Config config = cuda::jvp::sm90::select_config(p).value();
  EXPECT_LE(cuda::jvp::sm90::layout_of(features, config).total, kHopper.shared_bytes);
  const cuda::Cubin code = cuda::compile(cuda::jvp::sm90::program_of(features, config, cuda::mods_source(p, 1)));
  EXPECT_EQ(cuda::wrong_code(code, {config.threads(), {"HGMMA", "UTMALDG", "UTMASTG"}, false, GetParam().spilled}), "");
}

INSTANTIATE_TEST_SUITE_P(Table, CudaSm90Jvp,
                         testing::Values(Sm90JvpCase{"b1 h1 s4096 d64 bf16", 0},
                                         Sm90JvpCase{"b1 h1 s4096 d128 bf16", 0},
                                         Sm90JvpCase{"b1 h1 s4096 d128 fp16 causal_bottom_right", 24}));
INSTANTIATE_TEST_SUITE_P(More, CudaSm90Jvp,
                         testing::Values(Sm90JvpCase{"b1 h1 s4096 d256 bf16", 144},
                                         Sm90JvpCase{"b1 h1 s4096 d192/128 bf16 causal_bottom_right", 24},
                                         Sm90JvpCase{"b1 h1 s4096 d256 bf16 causal_bottom_right", 144},
                                         Sm90JvpCase{"b1 h1 s4096 d64 bf16 causal_bottom_right", 240},
                                         Sm90JvpCase{"b1 h1 s4096 d64 bf16 dropout=0.1", 240},
                                         Sm90JvpCase{"b1 h1 s4096 d128 bf16 dropout=0.1", 240},
                                         Sm90JvpCase{"b1 h1 s4096 d128 bf16 softcap=20", 24},
                                         Sm90JvpCase{"b1 h1 s4096 d128 bf16 mask=b1qk", 24},
                                         Sm90JvpCase{"b1 h1 s4096 d128 bf16 bias=bf16:1hqk tbias", 24},
                                         Sm90JvpCase{"b1 h1 s4096 d256 bf16 softcap=20", 144},
                                         Sm90JvpCase{"h4 d128 bf16 varlen=128,512 causal_bottom_right", 240},
                                         Sm90JvpCase{"b1 h1 s4096 d64 bf16 score_mod={score * 2}", 240}));
TEST(CudaSm90JvpTable, EveryRowFitsAndOthersAreRefused) {
  using cuda::jvp::sm90::select_config;
  for (int qk = 8; qk <= 256; qk += 8) {
    for (int v = 8; v <= 256; v += 8) {
      for (const char* feature : {"bf16", "fp16 dropout=0.1", "bf16 out=fp32"}) {
        const Problem p = parse_problem(text("jvp b1 h1 s100 d", qk, "/", v, " ", feature, " cuda"));
        const auto c = select_config(p);
        ASSERT_TRUE(c) << qk << "/" << v << ": " << c.refusal();
        EXPECT_LE(cuda::jvp::sm90::layout_of(cuda::jvp::features_of(p), *c).total, kHopper.shared_bytes)
            << qk << "/" << v << " " << feature;
      }
    }
  }
  const auto refusal = [](const char* line) { return select_config(parse_problem(line)).refusal(); };
  EXPECT_EQ(refusal("jvp b1 h1 s64 d64 fp32 cuda"), "requires fp16 or bf16 (q is fp32)");
  EXPECT_EQ(refusal("jvp b1 h1 s64 d64/264 bf16 cuda"), "head dims must be at most 256 (got 64/264)");
  EXPECT_EQ(refusal("jvp b1 h1 s64 d63 bf16 cuda"),
            "TMA needs strides of q that are non-negative multiples of 16 bytes (got 126)");
}

TEST(CudaJvpTable, EveryRowFitsTheDevicesThatTakeIt) {
  for_dims_and_devices("jvp", [](const Generation& device, const std::string& line) {
    const Problem p = parse_problem(line);
    const auto c = cuda::jvp::select_config(p, device.shared_bytes);
    if (std::max(p.dim_qk, p.dim_v) > 256) {
      EXPECT_EQ(c.refusal(),
                "head dims must be at most 256 (got " + std::to_string(p.dim_qk) + "/" + std::to_string(p.dim_v) + ")");
      return;
    }
    ASSERT_TRUE(c) << device.arch << " " << line << ": " << c.refusal();
    EXPECT_LE(c->blocks * (cuda::jvp::layout_of(cuda::jvp::features_of(p), *c).total + 1024),
              device.shared_bytes + 1024)
        << device.arch << " " << line;
  });
}

}  // namespace
}  // namespace onepass
