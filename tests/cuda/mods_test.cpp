// score_mod and mask_mod as device code: they compile without a spill, and a wrong one is shown with the user's line.
// Needs NVRTC, not a GPU; skipped where it is missing.
#include "cuda/attention/scores/mods.hpp"

#include <gtest/gtest.h>

#include <set>

#include "code_gate.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "cuda/block_mask/host.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/sm80/forward/forward.hpp"
#include "cuda/sm90/forward/forward.hpp"
#include "onepass/error.hpp"
#include "problem/problem.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

struct Compiled {
  cuda::Cubin cubin;
  int threads;
};
Compiled for_sm90(const Problem& p) {
  const sm90::ForwardConfig config = sm90::select_config(p).value();
  return {cuda::compile(sm90::program_of(cuda::features_of(p), config, cuda::mods_source(p))),
          128 * (config.groups + 1)};
}
Compiled for_sm80(const Problem& p) {
  const sm80::ForwardConfig config = sm80::select_config(p, 166912).value();
  return {cuda::compile(sm80::program_of(cuda::features_of(p), config, "sm_80", cuda::mods_source(p))),
          config.threads()};
}

class CudaMods : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  }
};

TEST_P(CudaMods, CompileWithoutASpill) {
  const Problem p = parse_problem(std::string(GetParam()) + " cuda");
  const Compiled ampere = for_sm80(p);
  if (p.dtype != DType::f32) {
    const Compiled hopper = for_sm90(p);
    EXPECT_EQ(cuda::wrong_code(hopper.cubin, {hopper.threads, {"HGMMA"}}), "");
  }
  EXPECT_EQ(cuda::wrong_code(ampere.cubin, {ampere.threads, {"HMMA"}}), "");
}

// The packing of a mask_mod, also of one that has no bounds.
TEST_P(CudaMods, TheirPackingCompilesWithoutASpill) {
  Problem p = parse_problem(std::string(GetParam()) + " cuda");
  if (p.mask_mod.empty()) GTEST_SKIP() << "no mask_mod";
  for (const char* arch : {"sm_80", "sm_90"}) {
    EXPECT_EQ(cuda::wrong_code(cuda::compile(cuda::mod_program(p, arch)), {256, {"VOTE"}}), "");
    p.mask_mod = "[](bool x) { return x; }(" + p.mask_mod + ")";
  }
}

TEST_P(CudaMods, TheTilesOfTheirBlockMaskCompileWithoutASpill) {
  const Problem p = parse_problem(std::string(GetParam()) + " cuda");
  if (p.mask_mod.empty()) GTEST_SKIP() << "no mask_mod";
  for (const char* arch : {"sm_80", "sm_90"}) {
    const auto programs = cuda::block_mask_programs(p, arch);
    ASSERT_FALSE(programs.empty());
    ASSERT_LE(programs.size(), p.mod_buffers.empty() ? 1u : 2u);  // score_mod alone may read the buffers
    EXPECT_EQ(cuda::wrong_code(cuda::compile(programs.back()), {kBlockMaskThreads, {"VOTE"}}), "");
    if (programs.size() == 1) continue;
    EXPECT_EQ(cuda::wrong_code(cuda::compile(programs.front()), {kBlockMaskThreads, {"BAR"}}), "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Lines, CudaMods,
    testing::Values(
        "fwd s4096 d128 bf16 mask_mod={doc[q_index] == doc[k_index] && q_index >= k_index} buffer=doc:int32:4096",
        "fwd s4096 d256 bf16 score_mod={30 * tanh(score / 30)} mask_mod={k_index < 64 || k_index <= q_index}",
        "fwd h2 s4096 d64 fp32 score_mod={score + table(head, q_index - k_index)} mask_mod={q_index >= k_index} "
        "buffer=table:fp32:2x4096",
        // Every function and operator of the language but sin and cos, and a statement, which only the compiler reads.
        "fwd s512 d64 bf16 score_mod={score + exp(score) - exp2f(score) * log(float(q_index + 1)) / log2f(2.0f) + "
        "sqrt(fabs(score)) + min(score, 1) + max(head, 2.5f) + fmin(score, 1.0f) + floor(score) + ceilf(score) + "
        "(float)(q_index % 3 << 1 | ~k_index & 7 ^ batch) + (score > 0.5 && !flags[k_index] ? -INFINITY : 1e-3) + "
        "min(q_index, k_index) + tanhf(score) + int(true)} buffer=flags:bool:512",
        // Every second score is hidden in every lane, which once made ptxas serialise the products.
        "fwd h1 d128 bf16 varlen=128,512 mask_mod={k_index % 2 == 0}"));
// These run in ./dev test all.
INSTANTIATE_TEST_SUITE_P(
    More, CudaMods,
    testing::Values(
        "fwd s4096 d128 bf16 score_mod={score - 0.1 * abs(q_index - k_index)}",
        "fwd h8 s4096 d64 bf16 causal_bottom_right score_mod={score - slope[head] * (q_index - k_index)} "
        "buffer=slope:fp32:8",
        "fwd h8 s1024 d128 fp16 score_mod={score + table(head, q_index - k_index + 1023)} buffer=table:fp16:8x2047",
        "fwd s512 d64 bf16 score_mod={[&](float x) { const float y = x * x; return y > 2.0f ? x : y; }(score)}"));

// The reduction of arguments beyond 105615 keeps the words of a product with 2 / pi: a stack that others do not touch.
TEST(CudaMods, SinAndCosHaveAStackAndNoSpill) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const Compiled hopper =
      for_sm90(parse_problem("fwd s512 d64 bf16 cuda score_mod={score + sin(score) * cosf(score)}"));
  const std::string said = cuda::wrong_code(hopper.cubin, {hopper.threads, {"HGMMA"}});
  EXPECT_NE(said.find("32 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"), said.npos) << said;
}

TEST(CudaMods, AWrongTextIsShownWithTheUsersLine) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  struct Wrong {
    const char *line, *file, *shown;
  };
  for (const Wrong& w : {Wrong{"score_mod={score + foo}", "score_mod(1): error", "score + foo"},
                         Wrong{"score_mod={score *}", "score_mod(1): error", "score *"},
                         Wrong{"score_mod={score\n + slope(head)}", "score_mod(2): error", "+ slope(head)"},
                         Wrong{"mask_mod={score > 1.0f}", "mask_mod(1): error", "score > 1.0f"},
                         Wrong{"score_mod={table[score]} buffer=table:fp32:4", "score_mod(1): error", "table[score]"},
                         Wrong{"score_mod={table(1)} buffer=table:fp32:4x4", "score_mod(1): error", "table(1)"}}) {
    const auto [code, what] =
        test::said_by([&] { for_sm90(parse_problem("fwd s128 d64 bf16 cuda " + std::string(w.line))); });
    EXPECT_EQ(code, ErrorCode::bad_text) << w.line;
    EXPECT_NE(what.find(w.file), std::string::npos) << what;
    EXPECT_NE(what.find(w.shown), std::string::npos) << what;
  }
}

TEST(CudaMods, TheKeyTellsTextsApart) {
  std::set<std::string> keys;
  const char* const lines[] = {"",
                               "score_mod={score}",
                               "mask_mod={score}",
                               "score_mod={score} mask_mod={true}",
                               "score_mod={score} buffer=a:fp32:3",
                               "score_mod={score} buffer=a:bf16:3",
                               "score_mod={score} buffer=a:fp32:3x3",
                               "score_mod={score} buffer=b:fp32:3",
                               "score_mod={score} buffer=b:fp32:3 buffer=a:fp32:3"};
  for (const char* line : lines) {
    keys.insert(cuda::mods_key(parse_problem("fwd s1 cuda " + std::string(line))));
  }
  EXPECT_EQ(keys.size(), std::size(lines));
  const auto key = [](const std::string& size) {
    return cuda::mods_key(parse_problem("fwd s1 cuda score_mod={score} buffer=a:fp32:" + size));
  };
  EXPECT_EQ(key("3"), key("4"));  // one kernel for every size
  EXPECT_NE(key("1"), key("3"));  // but for one element, which may be named without an index
}

TEST(CudaMods, TheTextIsPutIntoAFunctionAsItStands) {
  const auto text_of = [](const std::string& line) { return cuda::mods_source(parse_problem("fwd s1 cuda " + line)); };
  EXPECT_EQ(text_of(""), "");
  EXPECT_NE(text_of("score_mod={score + 1}").find("\n#line 1 \"score_mod\"\nscore + 1 ;}"), std::string::npos);
  EXPECT_NE(text_of("score_mod={a[1]} buffer=a:bf16:3").find("const Buffer<Bf16, 1> a{buffers_[0]};"),
            std::string::npos);
  const auto shown = [&](const std::string& line, const char* text) {
    EXPECT_NE(text_of(line).find(text), std::string::npos) << text_of(line);
  };
  shown("score_mod={score + a[head, b[k_index]]} buffer=a:fp32:3x3 buffer=b:int32:7",
        "\nscore + a(head, b[k_index]) ;}");
  shown("score_mod={a [b[head, 0], a[1, 2]]} buffer=a:fp32:3x3 buffer=b:int32:7x2", "\na (b(head, 0), a(1, 2)) ;}");
  shown("score_mod={score * a + b} buffer=a:fp32:1 buffer=b:fp32:1", "\nscore * a(0) + b(0) ;}");
  shown("score_mod={a[0] * a(0)} buffer=a:fp32:1", "\na[0] * a(0) ;}");
  // A float stays a float.
  EXPECT_NE(text_of("score_mod={0.5 * score + 1e-3 + 2. + .5 + x1 + 0x1e + 3 + 4.0f}")
                .find("0.5f * score + 1e-3f + 2.f + .5f + x1 + 0x1e + 3 + 4.0f"),
            std::string::npos);
}

}  // namespace
}  // namespace onepass
