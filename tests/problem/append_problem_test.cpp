// Appends as problems: lines, the problems of calls, and what is refused.
#include <gtest/gtest.h>

#include <string>

#include "onepass/append.hpp"
#include "onepass/error.hpp"
#include "plan/plan.hpp"
#include "problem/problem.hpp"
#include "support/append_case.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

using test::sentence_of;

TEST(AppendProblem, LinesReadBack) {
  for (const char* line :
       {"append b2 h3 s5x300 d64 bf16 cache_seqlens", "append b2 h4/2 s5x300 d64/32 fp16 q rotary=64 cache_seqlens",
        "append b1 h1 s1x320 d13/5 fp32 q rotary=10:interleaved positions=900 cache_seqlens=7 kv=paged:16",
        "append b2 h3 s9x64 d64 bf16 kv_dtype=fp8_e4m3 k_descale=bhn v_descale=111 varlen=3,6 cache_seqlens=0,50 "
        "layout=bshd",
        "append b2 h3 s20x64 d64 bf16 rotary=8 table=bf16 varlen=3,6 packed=20:0 kv=paged:16:9:4 cache_seqlens cuda:1",
        "append h4/2 q s37x640 d64 bf16 rotary=64 positions=4096 kv=paged:16 slots",
        "append h2 s37x640 d64 bf16 rotary=64 kv=paged:16 slots=int32/int64 kv_dtype=fp8_e4m3 k_descale=1h1",
        "append b1 h2 s1x8 d4 fp32 cache_seqlens k_new_strides=9,5,1 k_strides=99,40,5 align=k:8,v_new:2 cuda:0"}) {
    const std::string shown = to_string(parse_problem(line));
    EXPECT_EQ(to_string(parse_problem(shown)), shown);
    EXPECT_NE(shown.find("cache_seqlens") != shown.npos, shown.find(" slots") != shown.npos) << shown;
  }
  EXPECT_EQ(to_string(parse_problem("append b2 h4/2 q s5x300 d64 bf16 rotary=64 kv=paged:16")),
            "append b2 h4/2 s5x304 d64 bf16 q rotary=64 kv=paged:16 cache_seqlens");
  EXPECT_EQ(to_string(parse_problem("append slots=int64 h2 s5x9 kv=paged:4 d8")),
            "append b1 h2 s5x12 d8 fp32 kv=paged:4 slots");
}

TEST(AppendProblem, Refusals) {
  const auto of = [](const char* line) { return sentence_of([&] { (void)parse_problem(line); }); };
  EXPECT_EQ(of("append h4/2 s5x300"),
            "append does not support two numbers of heads without q (docs/reference/problem.md)");
  EXPECT_EQ(of("append h4/2 q s5x300"), "q requires cos and sin, which rotate it");
  EXPECT_EQ(of("append s5x300 d8 rotary=10"), "cos must have at most 4 columns, half the head dim of k_new (got 5)");
  EXPECT_EQ(of("append s5x300 rotary=8 table=bf16"), "cos must be fp32, as k_new (got bf16)");
  EXPECT_EQ(of("append s5x300 k_descale=111"), "k_descale requires an fp8_e4m3 cache (got fp32)");
  EXPECT_EQ(of("append s5x300 fp8_e4m3"), "k_new must be fp32, fp16 or bf16 (got fp8_e4m3)");
  EXPECT_EQ(of("append s5x30 cache_seqlens=26"),
            "cache_seqlens[0] must be 0 to 25 to append 5 tokens to a cache of 30 (got 26)");
  EXPECT_EQ(of("append s5x30 seqused=2"), "append does not support 'seqused=2' (docs/reference/problem.md)");
  for (const char* line :
       {"append s5x30 slots", "append b2 s5x30 slots kv=paged:4", "append slots varlen=2,3 kv=paged:4",
        "append s5x30 slots kv=paged:4:9:8", "append s5x32 slots cache_seqlens kv=paged:4"})
    EXPECT_NE(of(line), "") << line;
  EXPECT_EQ(of("append s5x32 slots=fp32 kv=paged:4"), "slot_mapping must be int32 or int64 (got fp32)");
  EXPECT_EQ(of("append s5x320 slots kv=paged:4 kv_dtype=fp8_e4m3 v_descale=11n"),
            "v_descale must be one factor for each head, or one for all, with slot_mapping");
  EXPECT_EQ(of("append s5x30 lse"), "append does not support 'lse' (docs/reference/problem.md)");
  EXPECT_EQ(of("fwd s5 rotary=8"), "fwd does not support 'rotary=8' (docs/reference/problem.md)");
  EXPECT_NE(of("append s5x30 rotary=8:both"), "");
}

// A plan is for all lengths, also of packed tokens, whose prefix sums the CPU could read.
TEST(AppendProblem, OfACallHasNoLengths) {
  float memory[1] = {};
  std::int32_t cu[] = {0, 2, 7}, used[] = {1, 2}, table[] = {0, 1, 2, 3};
  const AppendTensors t{.k_new = {memory, DType::f32, {7, 2, 8}},
                        .v_new = {memory, DType::f32, {7, 2, 4}},
                        .k = {memory, DType::f32, {5, 4, 2, 8}},
                        .v = {memory, DType::f32, {5, 4, 2, 4}},
                        .cache_seqlens = {used, DType::i32, {2}},
                        .page_table = {table, DType::i32, {2, 2}},
                        .cu_seqlens_q = {cu, DType::i32, {3}},
                        .cos = {memory, DType::f32, {50, 3}},
                        .sin = {memory, DType::f32, {50, 3}}};
  EXPECT_EQ(to_string(problem_of(t, true)),
            "append b2 h2 s7x8 d8/4 fp32 rotary=6:interleaved positions=50 packed=7:0 kv=paged:4:5:2 cache_seqlens");
}

TEST(AppendProblem, OfACallWithSlots) {
  float memory[1] = {};
  std::int64_t slots[7] = {};
  std::int32_t positions[7] = {};
  const AppendTensors t{.k_new = {memory, DType::f32, {7, 2, 8}},
                        .v_new = {memory, DType::f32, {7, 2, 4}},
                        .k = {memory, DType::f32, {5, 4, 2, 8}},
                        .v = {memory, DType::f32, {5, 4, 2, 4}},
                        .slot_mapping = {slots, DType::i64, {7}, {1}, {DeviceKind::cuda}},
                        .positions = {positions, DType::i32, {7}},
                        .cos_sin_cache = {memory, DType::f32, {50, 6}}};
  AppendTensors on_device = t;  // where the contents are not read
  for (ConstTensor AppendTensors::* x : {&AppendTensors::k_new, &AppendTensors::v_new, &AppendTensors::slot_mapping,
                                         &AppendTensors::positions, &AppendTensors::cos_sin_cache})
    (on_device.*x).device = {DeviceKind::cuda};
  on_device.k.device = on_device.v.device = {DeviceKind::cuda};
  const std::string line = to_string(problem_of(on_device, false));
  EXPECT_EQ(line.find("append b1 h2 s7x20 d8/4 fp32 rotary=6 positions=50 kv=paged:4 slots"), 0u) << line;
  EXPECT_EQ(sentence_of([&] { (void)problem_of(t, false); }), "slot_mapping must be on cpu, as k_new (got cuda:0)");
}

}  // namespace
}  // namespace onepass
