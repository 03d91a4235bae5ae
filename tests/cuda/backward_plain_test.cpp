// The kernels of second derivatives, and the plain ones of gradients, compile for the devices that take them. Needs
// NVRTC, not a GPU; what compiles is skipped where it is missing.
#include "cuda/backward_plain/backward_plain.hpp"
#include "cuda/backward_jvp/backward_jvp.hpp"

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/backward_jvp/sm90/backward_jvp.hpp"
#include "cuda/driver/api.hpp"
#include "sm80_cases.hpp"

namespace onepass {
namespace {

namespace plain = cuda::backward_plain;

class CudaPlainBackward : public testing::TestWithParam<Sm80Case> {};

TEST_P(CudaPlainBackward, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const auto& [device, line] = GetParam();
  const Problem p = parse_problem(std::string(line) + " cuda");
  const plain::Plan plan = plain::select_plan(p).value();
  const PlainBackwardParams params = plain::decided_params(p, plan, 50 << 20);
  const std::string mods = cuda::mods_source(p, plain::derivatives_of(plan));
  for (const plain::Part part : plain::kParts) {
    EXPECT_LE(plain::shared_bytes_of(part, plan.shape), device.shared_bytes);
    if (plain::blocks_of(part, params, plan) == 0) continue;
    const cuda::Cubin code = cuda::compile(plain::program_of(part, plan, device.arch, mods));
    const bool products = part != plain::Part::stats && part != plain::Part::sums;
    EXPECT_EQ(cuda::wrong_code(code, products ? cuda::CodeGate{plain::threads_of(part), {"FFMA", "LDS.128"}}
                                              : cuda::CodeGate{plain::threads_of(part), {}}),
              "")
        << static_cast<int>(part);
  }
}

constexpr char kEverything[] =
    "bwd_jvp b1 h4 s4096 d128 bf16 softcap=20 alibi sinks tsinks mask=b1qk bias=fp32:1hqk tbias dropout=0.2 "
    "window=50:40 tdout dlse tdlse grads=dq,dk,dv,dbias,dsinks,dalibi_slopes "
    "score_mod={score + 0.1 * tanh(score) * min(score, 2.0) / (1.0 + abs(score))}";
INSTANTIATE_TEST_SUITE_P(Table, CudaPlainBackward,
                         testing::Values(Sm80Case{kHopper, "bwd_jvp b1 h1 s4096 d128 bf16 causal_bottom_right"},
                                         Sm80Case{kHopper, "bwd_jvp b1 h1 s4096 d128 fp32 tdout"},
                                         Sm80Case{kHopper, kEverything},
                                         Sm80Case{kHopper, "bwd b1 h1 s4096 d128 bf16 entropy dentropy"}));
INSTANTIATE_TEST_SUITE_P(
    More, CudaPlainBackward,
    testing::Values(Sm80Case{kA100, kEverything}, Sm80Case{kAda, "bwd_jvp h4/2 d64 fp16 varlen=128,512 tdout"},
                    Sm80Case{kBlackwell, "bwd_jvp b1 h1 s4096 d256 bf16 tdout"},
                    Sm80Case{kHopper, "bwd_jvp b1 h1 s4096 d33/7 bf16 tdout"},
                    Sm80Case{kHopper, "bwd_jvp b1 h1 s4096 d256/200 fp32 tdout"},
                    Sm80Case{kHopper, "bwd_jvp b1 h1 s4096 d512 fp32 tdout alibi grads=dq,dk,dv,dalibi_slopes"},
                    Sm80Case{kHopper, "bwd_jvp b1 h1 s4096 d576/512 bf16 tdout"},
                    Sm80Case{kAda, "bwd b1 h1 s4096 d512 fp32 entropy dentropy alibi softcap=20 dropout=0.1"}));

// Those on tensor cores, and the plain kernels of the same plan.
struct SecondCase : Sm80Case {
  int spilled = 0;  // bytes of a lane in local memory
};
class CudaSecond : public testing::TestWithParam<SecondCase> {};

TEST_P(CudaSecond, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const auto& [device, line] = static_cast<const Sm80Case&>(GetParam());
  const Problem p = parse_problem(std::string(line) + " cuda");
  const cuda::backward_jvp::Plan plan = cuda::backward_jvp::select_plan(p, device.shared_bytes).value();
  const std::string mods = cuda::mods_source(p, 2);
  for (const bool keys : {false, true}) {
    EXPECT_LE(cuda::backward_jvp::shared_bytes_of(keys, plan), device.shared_bytes);
    const cuda::Cubin code = cuda::compile(cuda::backward_jvp::program_of(keys, plan, device.arch, mods));
    cuda::CodeGate gate = sm80_gate(p, plan.config);
    gate.spilled = GetParam().spilled;
    EXPECT_EQ(cuda::wrong_code(code, gate), "") << keys;
  }
  for (const plain::Part part : {plain::Part::stats, plain::Part::rows, plain::Part::keys}) {
    const cuda::Cubin code = cuda::compile(plain::program_of(part, plan.plain, device.arch, mods));
    EXPECT_EQ(cuda::wrong_code(code, {plain::threads_of(part), {}}), "") << static_cast<int>(part);
  }
}
TEST(CudaSecondPlan, RefusesWhatNoConfigComputes) {
  const auto refusal = [](const char* line, int shared_bytes) {
    return cuda::backward_jvp::select_plan(parse_problem(line), shared_bytes).refusal();
  };
  EXPECT_EQ(refusal("bwd_jvp b1 h1 s9 d300 bf16 cuda", kHopper.shared_bytes),
            "no configuration for head dims 300/300 fits 232448 bytes of shared memory");
  EXPECT_EQ(refusal("bwd_jvp b1 h1 s9 d8 bf16 out=fp32 cuda", kHopper.shared_bytes),
            "does not support an out of another dtype than q (got fp32 and bf16)");
  EXPECT_EQ(refusal("bwd_jvp b1 h1 s9 d8 bf16 sinks grads=dsinks cuda", kHopper.shared_bytes),
            "computes derivatives of dq, dk and dv (got none of them)");
}

INSTANTIATE_TEST_SUITE_P(Table, CudaSecond,
                         testing::Values(SecondCase{{kHopper, "bwd_jvp b1 h1 s4096 d128 bf16 causal_bottom_right"},
                                                    64}));
INSTANTIATE_TEST_SUITE_P(More, CudaSecond,
                         testing::Values(SecondCase{{kHopper, "bwd_jvp b1 h1 s4096 d128 bf16"}, 32},
                                         SecondCase{{kHopper, "bwd_jvp b1 h1 s4096 d128 fp32 tdout"}, 64},
                                         SecondCase{{kHopper, kEverything}, 512},
                                         SecondCase{{kA100, "bwd_jvp b1 h1 s4096 d128 bf16 tdout"}},
                                         SecondCase{{kA100, kEverything}, 512},
                                         SecondCase{{kAda, "bwd_jvp h4/2 d64 fp16 varlen=128,512 tdout"}},
                                         SecondCase{{kAda, "bwd_jvp b1 h1 s4096 d128 bf16"}},
                                         SecondCase{{kHopper, "bwd_jvp b1 h1 s4096 d256 bf16 tdout"}},
                                         SecondCase{{kBlackwell, "bwd_jvp b1 h1 s4096 d128 fp16 tdout"}},
                                         SecondCase{{kHopper, "bwd_jvp b1 h1 s4096 d33/7 bf16 tdout"}},
                                         SecondCase{{kHopper, "bwd_jvp b1 h1 s4096 d64 fp32 tdout"}}));

// Hopper's kernels. spilled: bytes of a lane, of the pass over rows and of that over keys.
struct Sm90SecondCase {
  const char* line;
  int spilled[2];
};
std::ostream& operator<<(std::ostream& out, const Sm90SecondCase& c) { return out << '"' << c.line << '"'; }
class CudaSm90Second : public testing::TestWithParam<Sm90SecondCase> {};

TEST_P(CudaSm90Second, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const Problem p = parse_problem("bwd_jvp " + std::string(GetParam().line) + " cuda");
  const cuda::backward_jvp::sm90::Plan plan = cuda::backward_jvp::sm90::select_plan(p).value();
  for (const bool keys : {false, true}) {
    const cuda::Cubin code = cuda::compile(program_of(keys, plan, kHopper.arch, cuda::mods_source(p, 2)));
    EXPECT_EQ(cuda::wrong_code(code, {plan.config.threads(), {"HGMMA", "UTMALDG"}, false, GetParam().spilled[keys]}),
              "")
        << keys;
  }
}
INSTANTIATE_TEST_SUITE_P(Table, CudaSm90Second,
                         testing::Values(Sm90SecondCase{"b1 h1 s4096 d128 bf16 causal_bottom_right", {0, 0}}));
INSTANTIATE_TEST_SUITE_P(
    More, CudaSm90Second,
    testing::Values(Sm90SecondCase{"b1 h1 s4096 d128 bf16", {0, 0}}, Sm90SecondCase{"b1 h1 s4096 d64 bf16", {0, 0}},
                    Sm90SecondCase{"b1 h1 s4096 d128 fp16 tdout", {0, 0}},
                    Sm90SecondCase{"h4 d128 bf16 varlen=128,512 causal_bottom_right", {0, 0}},
                    Sm90SecondCase{"b1 h1 s4096 d128 bf16 softcap=20", {0, 0}},
                    Sm90SecondCase{"b1 h1 s4096 d128 bf16 alibi grads=dq,dk,dv,dalibi_slopes", {0, 0}},
                    Sm90SecondCase{"b1 h1 s4096 d128 bf16 score_mod={score * 2}", {0, 0}},
                    Sm90SecondCase{"b1 h1 s4096 d128 bf16 dropout=0.1", {80, 64}},
                    Sm90SecondCase{"b1 h1 s4096 d64 bf16 dropout=0.1", {32, 128}},
                    Sm90SecondCase{"b1 h1 s4096 d128 bf16 mask=b1qk", {64, 64}},
                    Sm90SecondCase{"b1 h1 s4096 d128 bf16 bias=bf16:1hqk tbias", {64, 128}}));
TEST(CudaSm90SecondPlan, FitsAndRefusesTheRest) {
  using cuda::backward_jvp::sm90::select_plan;
  for (int qk = 8; qk <= 128; qk += 8) {
    for (int v = 8; v <= 128; v += 8) {
      for (const char* feature : {"bf16", "fp16 tdout", "bf16 dropout=0.1"}) {
        const auto plan = select_plan(parse_problem(text("bwd_jvp b1 h1 s100 d", qk, "/", v, " ", feature, " cuda")));
        ASSERT_TRUE(plan) << qk << "/" << v << ": " << plan.refusal();
        for (const bool keys : {false, true})
          EXPECT_LE(shared_bytes_of(keys, *plan), kHopper.shared_bytes) << qk << "/" << v << " " << feature;
      }
    }
  }
  const auto refusal = [](const char* line) { return select_plan(parse_problem(line)).refusal(); };
  EXPECT_EQ(refusal("bwd_jvp b1 h1 s64 d64 fp32 cuda"), "requires fp16 or bf16 (q is fp32)");
  EXPECT_EQ(refusal("bwd_jvp b1 h1 s64 d64/136 bf16 cuda"), "head dims must be at most 128 (got 64/136)");
  EXPECT_EQ(refusal("bwd_jvp b1 h1 s64 d63 bf16 cuda"),
            "TMA needs strides of q that are non-negative multiples of 16 bytes (got 126)");
}

}  // namespace
}  // namespace onepass
