// fp8_e4m3 in problems: lines, tensors, and what is refused.
#include <gtest/gtest.h>

#include <string>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/roles.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

using test::sentence_of;

TEST(Fp8Problem, LinesReadBack) {
  for (const char* line :
       {"fwd b2 h4/2 s200x300 d64 fp8_e4m3", "fwd b2 h4/2 s200x300 d64 fp8_e4m3 out=fp16 accumulation=fast",
        "fwd b2 h4/2 s200x300 d64 fp8_e4m3 out=fp32 q_descale=bhn k_descale=bh1 v_descale=111",
        "fwd b2 h4/2 s1x300 d64 bf16 kv_dtype=fp8_e4m3 k_descale=1h1 v_descale=1hn",
        "fwd b2 h4/2 s1x300 d64 bf16 out=fp32 kv_dtype=fp8_e4m3 kv=paged:16 seqused",
        "fwd b2 h4/2 s200x300 d64 fp8_e4m3 v_descale=bh1 v_mean=1hd", "quantize b2 h3 s200x64 bf16 descale=bhn",
        "quantize b2 h3 s200x64 fp32 descale=1h1 hadamard seed=7 mean cuda:0", "fwd b1 h1 s9 d64 bf16 fp8",
        "fwd b1 h1 s9 d64 fp32 fp8=plain",
        "fwd b1 h1 s9 d64 fp16 out=fp32 accumulation=fast fp8=hadamard,by_block,center",
        "fwd b1 h1 s9 d64 bf16 fp8=by_block,center", "fwd b1 h1 s9 d64 bf16 fp8=hadamard,seed:18446744073709551615"}) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(to_string(p), line);
    EXPECT_TRUE(parse_problem(to_string(p)) == p);
  }
  EXPECT_EQ(parse_problem("fwd s9 fp8_e4m3").out_dtype, DType::bf16);
  EXPECT_EQ(to_string(parse_problem("fwd s9 bf16 kv_dtype=bf16")), "fwd b1 h1 s9 d64 bf16");
}

TEST(Fp8Problem, Refusals) {
  const auto of = [](const char* line) { return sentence_of([&] { (void)parse_problem(line); }); };
  EXPECT_EQ(of("bwd s9 fp8_e4m3"), "attention_backward does not support fp8_e4m3 q, k and v");
  EXPECT_EQ(of("fwd s9 fp16 kv_dtype=bf16"), "k and v must be fp16, as q, or fp8_e4m3 (got bf16)");
  EXPECT_EQ(of("fwd s9 fp8_e4m3 kv_dtype=bf16"), "k and v must be fp8_e4m3, as q (got bf16)");
  EXPECT_EQ(of("fwd s9 bf16 k_descale=111"), "k_descale requires an fp8_e4m3 k (got bf16)");
  EXPECT_EQ(of("fwd s9 bf16 kv_dtype=fp8_e4m3 q_descale=111"), "q_descale requires an fp8_e4m3 q (got bf16)");
  EXPECT_EQ(of("fwd s9 bf16 accumulation=fast"), "accumulation=fast requires an fp8_e4m3 q (got bf16)");
  EXPECT_EQ(of("fwd s9 fp8_e4m3 out=fp8_e4m3"), "out must be fp32, fp16 or bf16 (got fp8_e4m3)");
  EXPECT_NE(of("fwd s9 fp8_e4m3 q_descale=bh"), "");
  EXPECT_EQ(of("bwd s9 bf16 fp8"), "bwd does not support 'fp8' (docs/reference/problem.md)");
  EXPECT_EQ(of("fwd s9 fp8_e4m3 fp8"), "q must be fp32, fp16 or bf16 (got fp8_e4m3)");
  EXPECT_EQ(of("fwd s9 bf16 kv_dtype=fp8_e4m3 fp8"), "k and v must be bf16, as q, to be quantized (got fp8_e4m3)");
  EXPECT_EQ(of("fwd s9 bf16 fp8 v_descale=111"),
            "attention_fp8 does not support v_descale; it computes the scales and means");
  EXPECT_EQ(of("fwd s9 bf16 fp8 seqused"), "attention_fp8 does not support seqused_k");
  EXPECT_EQ(of("fwd s9 d576/512 bf16 fp8"), "attention_fp8 requires head dims of 1 to 256 (got 576/512)");
  EXPECT_EQ(of("fwd s9 bf16 fp8=plain,seed:3"),
            "cannot read 'fp8=plain,seed:3' in \"fwd s9 bf16 fp8=plain,seed:3\": it must be fp8, fp8=plain, or fp8= "
            "with some "
            "of hadamard, by_block, center and seed:<integer>, each once");
  EXPECT_EQ(of("fwd s9 bf16 fp8=center,seed:3"), "the seed of fp8 must be 0 without hadamard (got 3)");
  EXPECT_EQ(of("fwd s9 bf16 v_mean=bhd"), "v_mean requires an fp8_e4m3 v (got bf16)");
  EXPECT_EQ(of("fwd s9 bf16 hadamard"), "fwd does not support 'hadamard' (docs/reference/problem.md)");
  EXPECT_EQ(of("quantize s9x300 bf16"), "rows of x must have 1 to 256 elements (got 300)");
  EXPECT_EQ(of("quantize s9x64 bf16 seed=3"), "seed must be 0 without hadamard (got 3)");
  EXPECT_EQ(of("quantize b2 s300x64 bf16 descale=11n"),
            "scales of blocks of 128 rows cannot be shared across heads or batch entries");
  EXPECT_EQ(of("quantize s9x64 fp8_e4m3"), "x must be fp32, fp16 or bf16 (got fp8_e4m3)");
}

// q [2, 4, 200, 64], k and v [2, 2, 300, 64]; addresses alone.
struct Call {
  char memory[8] = {};
  AttentionTensors t{.q = {memory, DType::f8e4m3, {2, 4, 200, 64}},
                     .k = {memory, DType::f8e4m3, {2, 2, 300, 64}},
                     .v = {memory + 1, DType::f8e4m3, {2, 2, 300, 64}},
                     .out = {memory, DType::bf16, {2, 4, 200, 64}}};
  std::string operator()() {
    return sentence_of([&] { (void)problem_of(t, {}); });
  }
};

TEST(Fp8Problem, DescalesBroadcastAndEndEarly) {
  const auto line = [](std::initializer_list<std::int64_t> shape) {
    Call c;
    c.t.q_descale = {c.memory, DType::f32, shape};
    const Problem p = problem_of(c.t, {});
    check_planned(p, c.t);
    const std::string s = to_string(p);
    return s.substr(s.find("q_descale"));
  };
  EXPECT_EQ(line({1}), "q_descale=111");
  EXPECT_EQ(line({2}), "q_descale=b11");
  EXPECT_EQ(line({2, 4}), "q_descale=bh1");
  EXPECT_EQ(line({1, 4}), "q_descale=1h1");
  EXPECT_EQ(line({2, 4, 2}), "q_descale=bhn");
  EXPECT_EQ(line({1, 1, 2}), "q_descale=11n");
}

TEST(Fp8Problem, DescalesThatDoNotFit) {
  Call c;
  c.t.k_descale = {c.memory, DType::f32, {2, 4}};
  EXPECT_EQ(c(), "dimension 1 of k_descale must be 2 or 1 (got shape [2, 4])");
  c.t.k_descale = {c.memory, DType::f32, {2, 2, 300}};
  EXPECT_EQ(c(), "dimension 2 of k_descale must be 3 or 1 (got shape [2, 2, 300])");
  c.t.k_descale = {c.memory, DType::f32, {2, 2, 3, 1}};
  EXPECT_EQ(
      c(), "k_descale must have shape [batch|1, heads_kv|1, ceil(seq_k / 128)|1] or a prefix of it (got [2, 2, 3, 1])");
  c.t.k_descale = {c.memory, DType::f16, {1}};
  EXPECT_EQ(c(), "k_descale must be fp32 (got fp16)");
  c = {};
  c.t.v.dtype = DType::bf16;
  EXPECT_EQ(c(), "v must be fp8_e4m3, as k (got bf16)");
}

TEST(Fp8Problem, ACacheBesideSixteenBits) {
  Call c;
  c.t.q.dtype = DType::bf16;
  c.t.v_descale = {c.memory, DType::f32, {1}};
  EXPECT_EQ(to_string(problem_of(c.t, {})), "fwd b2 h4/2 s200x300 d64 bf16 kv_dtype=fp8_e4m3 v_descale=111");
  c.t.k.dtype = DType::bf16;
  EXPECT_EQ(c(), "v must be bf16, as k (got fp8_e4m3)");
  c.t.k.dtype = DType::f8e4m3;
  c.t.out.dtype = DType::f16;
  EXPECT_EQ(c(), "out must be bf16, as q, or fp32 (got fp16)");
  for (const DType dtype : {DType::bf16, DType::f32}) {
    c = {};
    c.t.q.dtype = c.t.out.dtype = dtype;
    c.t.dout = c.t.dq = c.t.out;
    c.t.lse = {c.memory, DType::f32, {2, 4, 200}};
    c.t.dk = c.t.dv = {c.memory, dtype, {2, 2, 300, 64}};
    EXPECT_EQ(c(), text("attention_backward does not support fp8_e4m3 k and v with ", name_of(dtype), " q"));
  }
}

}  // namespace
}  // namespace onepass
