// Refusals of the problem grammar: a sentence that names the word and what would be accepted.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "onepass/error.hpp"
#include "problem/operator.hpp"
#include "problem/problem.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

struct Wrong {
  const char *line, *word, *expected;  // the sentence names the word and what would be accepted
};
std::ostream& operator<<(std::ostream& out, const Wrong& wrong) { return out << '"' << wrong.line << '"'; }
class BadLine : public testing::TestWithParam<Wrong> {};
TEST_P(BadLine, IsRefusedInASentence) {
  const auto& [line, word, expected] = GetParam();
  for (const auto& part : {word, expected}) test::expect_refused([&line = line] { parse_problem(line); }, part);
}
INSTANTIATE_TEST_SUITE_P(
    Problem, BadLine,
    testing::Values(
        Wrong{"b2 h4 s5 d16 fp31", "'fp31'", "a word of the problem grammar"}, Wrong{"bx", "'bx'", "a word"},
        Wrong{"b2x", "'b2x'", "b<batch>"}, Wrong{"b99999999999999999999", "'b99999999999999999999'", "b<batch>"},
        Wrong{"h4/", "'h4/'", "h<query heads>[/<K/V heads>]"}, Wrong{"h4/2/1", "'h4/2/1'", "h<query heads>"},
        Wrong{"s5x", "'s5x'", "s<queries>[x<keys>]"}, Wrong{"d1.5", "'d1.5'", "d<dim of q and k>[/<dim of v>]"},
        Wrong{"h4/3 s5 d8", "heads_q (4)", "must be a multiple of heads_kv (3)"},
        Wrong{"h4/0 s5 d8", "heads_q (4)", "heads_kv (0)"}, Wrong{"b-1", "'b-1'", "a word"},
        Wrong{"b1 s5 d0", "dim_qk must be 1 to 512, or 576", "(got 0)"},
        Wrong{"b1 s5 d513", "dim_qk must be 1 to 512, or 576", "(got 513)"},
        Wrong{"b1 s5 d64/513", "dim_v must be 1 to 512", "(got 513)"},
        Wrong{"b1 s5 d576", "dim_v must be 1 to 512", "(got 576)"},
        Wrong{"bwd s5 d8 fp8_e4m3", "attention_backward does not support", "fp8_e4m3 q, k and v"},
        Wrong{"s5 d8 out=int32", "out must be fp32, fp16 or bf16", "(got int32)"},
        Wrong{"s5 d8 bf16 out=fp16", "out must be bf16, as q, or fp32", "(got fp16)"},
        Wrong{"s5 d8 out=half", "'half'", "fp32"}, Wrong{"s5 d8 window=3", "'window=3'", "window=left:right"},
        Wrong{"s5 d8 window=-2:0", "left side must be -1 (unbounded)", "(got -2)"},
        Wrong{"s5 d8 window=0:-5", "right side must be -1 (unbounded)", "(got -5)"},
        Wrong{"s5 d8 scale=inf", "scale must be -2.3e38 to 2.3e38", "(got inf)"},
        Wrong{"s5 d8 softcap=1e-30", "softcap must be 0 (none) or 1e-20 to 1e+20", "(got 1e-30)"},
        Wrong{"s5 d8 softcap=1e36", "softcap must be 0 (none) or 1e-20 to 1e+20", "(got 1e+36)"},
        Wrong{"s5 d8 scale=-1e19 softcap=1e-20", "scale must be at most 1e25 times softcap", "(got -1e+19 and 1e-20)"},
        Wrong{"s5 d8 scale=-1e39", "scale must be -2.3e38 to 2.3e38", "(got -1e+39)"},
        Wrong{"s5 d8 causal_top_left window=4:5", "right side must be -1 or 0 with a causal mask", "(got 5)"},
        Wrong{"s5 d8 causal_offset", "'causal_offset'", "a word"},
        Wrong{"s5 d8 causal_offset=", "'causal_offset='", "causal_offset=keys"},
        Wrong{"s5 d8 aligned_offset=1.5", "'aligned_offset=1.5'", "aligned_offset=keys"},
        Wrong{"s5 d8 causal_offset=1152921504606846977", "offset must be -2^60 to 2^60", "(got 1152921504606846977)"},
        Wrong{"s5 d8 causal_offset=3 causal_top_left", "'causal_top_left'", "conflicts with 'causal_offset=3'"},
        Wrong{"s5 d8 scale=one", "'scale=one'", "a number"},
        Wrong{"s5 d8 softcap=-1", "softcap must be 0 (none) or positive", "(got -1)"},
        Wrong{"s5 d8 softcap=nan", "softcap must be 0 (none) or positive", "(got nan)"},
        Wrong{"s5 d8 dropout=1.5", "dropout_p must be 0 to 1", "(got 1.5)"},
        Wrong{"s5 d8 dropout=nan", "dropout_p must be 0 to 1", "(got nan)"},
        Wrong{"s5 d8 dropout=0.5 seed=7 dropout_seed", "seed must be 0 with dropout_seed", "(got 7)"},
        Wrong{"s5 d8 dropout_start=0:0:0:6", "the key of dropout_start must be a multiple of 4", "(got 6)"},
        Wrong{"s5 d8 dropout_start=0:0:8", "'dropout_start=0:0:8'", "dropout_start=batch:head:row:key"},
        Wrong{"s5 d8 tree=65 causal_bottom_right", "tree must have 1 to 64 drafts of a sequence", "(got 65)"},
        Wrong{"s5 d8 tree=-1 causal_bottom_right", "tree must have 1 to 64 drafts of a sequence", "(got -1)"},
        Wrong{"s5 d8 tree=few causal_bottom_right", "'tree=few'", "tree=<drafts of a sequence>"},
        Wrong{"s5 d8 tree=4", "tree requires the mask causal_bottom_right", "sees nothing behind itself"},
        Wrong{"s5 d8 tree=4 causal_top_left", "tree requires the mask causal_bottom_right", "behind itself"},
        Wrong{"s5 d8 tree=4 causal_bottom_right fp8", "attention_fp8 does not support tree", "tree"},
        Wrong{"bwd s5 d8 tree=4 causal_bottom_right", "'tree=4'", "bwd does not support"},
        Wrong{"s5 d8 block_mask=bh", "'block_mask=bh'", "a spread such as bhqk or 11qk"},
        Wrong{"s5 d8 mask_tile_q=64", "mask_tile_q requires block_mask", ""},
        Wrong{"s5 d8 block_mask=11qk mask_tile_k=-1", "mask_tile_k must be 0 (128) to 2147483647", "(got -1)"},
        Wrong{"s5 d8 block_mask=11qk mask_tile_k=2147483648", "mask_tile_k must be 0 (128) to 2147483647",
              "(got 2147483648)"},
        Wrong{"s5 d8 seed=-1", "'seed=-1'", "an integer"},
        Wrong{"s5 d8 mask=bh", "'mask=bh'", "a spread such as bhqk or 11qk"},
        Wrong{"s5 d8 mask=kqhb", "'mask=kqhb'", "a spread"},
        Wrong{"s5 d8 bias=bhqk", "'bias=bhqk'", "bias=dtype:spread"},
        Wrong{"s5 d8 bias=int32:bhqk", "bias must be fp32, fp16 or bf16", "(got int32)"},
        Wrong{"h1 d8 varlen=3,x", "'varlen=3,x'", "lengths such as 3,7,128x4"},
        Wrong{"h1 d8 varlen=3,-1", "'varlen=3,-1'", "lengths from 0"},
        Wrong{"h1 d8 varlen=3,4/5", "'varlen=3,4/5'", "one length of k for each length of q"},
        Wrong{"h1 d8 varlen=1x9999999", "'varlen=1x9999999'", "at most 1048576"},
        Wrong{"h1 d8 packed=3", "'packed=3'", "packed=total_q:total_k"},
        Wrong{"h1 s4 d8 strides=q:1,2,3", "'strides=q:1,2,3'", "strides=q:batch,head,token"},
        Wrong{"h1 s4 d8 strides=q:1,2;k:1,2,3;v:1,2,3;o:1,2,3", "strides", "batch,head,token"},
        Wrong{"h1 s4 d8 strides=q:1,2,z;k:1,2,3;v:1,2,3;o:1,2,3", "strides", "three integers"},
        Wrong{"h1 s4 d8 layout=hbsd", "'layout=hbsd'", "a word"}, Wrong{"s4 d8 cuda:x", "'cuda:x'", "a device number"},
        Wrong{"s4 d8 unknown=3", "'unknown=3'", "docs/reference/problem.md"},
        Wrong{"s4 d8 cuda:-1", "'cuda:-1'", "a device number from 0"},
        Wrong{"s4 d8 cuda:4294967296", "'cuda:4294967296'", "a device number"},
        Wrong{"s4 d8 cuda:", "'cuda:'", "a device number"}, Wrong{"d64x", "'d64x'", "d<dim of q and k>"},
        Wrong{"s4x5x6", "'s4x5x6'", "s<queries>"}, Wrong{"s4 window=1:2:3", "'window=1:2:3'", "window=left:right"},
        Wrong{"s4 window=1:9223372036854775808", "'window=1:9223372036854775808'", "window=left:right"},
        Wrong{"s4 seed=18446744073709551616", "'seed=18446744073709551616'", "an integer"},
        Wrong{"s4 scale=1e999", "'scale=1e999'", "a number"}, Wrong{"s4 softcap=2x", "'softcap=2x'", "a number"},
        Wrong{"d8 varlen=3,4/5,6/7", "'varlen=3,4/5,6/7'", "lengths such as"},
        Wrong{"d8 packed=3:4:5", "'packed=3:4:5'", "packed=total_q:total_k"},
        Wrong{"s4 bias=fp32:bhqk:1", "'bias=fp32:bhqk:1'", "a spread"},
        Wrong{"b3 d8 varlen=1,2", "the number of lengths of q must be 3, as batch", "(got 2)"},
        Wrong{"s4 d8 varlen=1,9", "lengths of q must be 0 to 4", "(got 9)"},
        Wrong{"d8 varlen=4,4 packed=7:8", "the sum of the lengths of q must be at most 7", "(got 8)"},
        Wrong{"fwd\x80 s4", "'fwd\\x80'", "a word"},
        Wrong{"s4 gr\xc3\xb6\xc3\x9f", "'gr\\xc3\\xb6\\xc3\\x9f'", "a word"},
        Wrong{"s4 score_mod={score + \xc3\xa9}", "score_mod, column 9: '\\xc3'", "must be printable ASCII"},
        Wrong{"s4 mask_mod={k_index\x7f} cuda", "mask_mod, column 8: '\\x7f'", "must be printable ASCII"},
        Wrong{"s4 score_mod={t[0]} buffer=\xc3\xa9:fp32:4", "the mod buffer name must be a letter",
              "(got '\\xc3\\xa9')"},
        Wrong{"s4 d8 score_mod=score", "'score_mod=score'", "an expression in braces"},
        Wrong{"s4 d8 score_mod={score", "'score_mod={score'", "an expression in braces"},
        Wrong{"s4 d8 score_mod={score + x}", "score_mod, column 9: 'x'", "score, batch, head, q_index, k_index"},
        Wrong{"s4 d8 mask_mod={q_index >=}", "mask_mod, column 11", "a value is expected"},
        Wrong{"s4 d8 score_mod={(score} cuda", "column 1: '('", "must be closed"},
        Wrong{"s4 d8 score_mod={#if} cuda", "'#'", "does not support"},
        Wrong{"s4 d8 score_mod={score; f()} cuda", "';'", "must be one expression"},
        Wrong{"s4 d8 buffer=t:fp32:4", "mod_buffers requires", "a score_mod or a mask_mod"},
        Wrong{"s4 d8 score_mod={score} buffer=t", "'buffer=t'", "buffer=name:dtype:sizes"},
        Wrong{"s4 d8 score_mod={score} buffer=t:fp32:1x2x3x4x5", "'buffer=t:fp32:1x2x3x4x5'", "at most 4 sizes"},
        Wrong{"s4 d8 score_mod={score} buffer=t:fp8_e4m3:4", "mod buffer t must be fp32, fp16, bf16, int32 or bool",
              "(got fp8_e4m3)"},
        Wrong{"s4 d8 score_mod={score} buffer=t:fp32:0", "dimension 0 of mod buffer t must be 1 to 2147483647",
              "(got 0)"},
        Wrong{"s4 d8 score_mod={score} buffer=score:fp32:4", "'score'", "must not be a reserved word"},
        Wrong{"s4 d8 score_mod={score} buffer=4:fp32:4", "'4'", "must be a letter and up to 63 letters"},
        Wrong{"s4 d8 score_mod={score} buffer=t:fp32:4 buffer=t:fp32:4", "the names of mod buffers must differ",
              "(got t twice)"},
        Wrong{"s4x3000000000 d8 score_mod={score}", "must be at most 2147483647", "and 3000000000)"},
        Wrong{"b4000000000 h4000000000 s4 d8", "2^62", "at most"},
        Wrong{"s4000000000000 d8", "the score matrix", "2^62"},
        Wrong{"merge n0 s4 d8", "the number of partial results must be 1 or more", "(got 0)"},
        Wrong{"merge s4 d8", "the number of partial results must be 1 or more", "(got 0)"},
        Wrong{"merge n2 s4 d8 alibi", "merge does not support 'alibi'", "docs/reference/problem.md"},
        Wrong{"merge n2 s4 d8 strides=q:1,2,3;k:1,2,3;v:1,2,3;o:1,2,3", "merge does not support buffer or strides",
              "out_strides"},
        Wrong{"s4 d8 n2", "fwd does not support 'n2'", "docs/reference/problem.md"},
        Wrong{"s4 d8 bias=fp32:11qk bias_strides=1,2", "'bias_strides=1,2'", "a stride for each dimension"},
        Wrong{"s4 d8 what_strides=1,2", "'what_strides=1,2'", "a word of the problem grammar"},
        Wrong{"s4 d8 lse lse_strides=0,0,999999999999999999", "and stride 999999999999999999", "2^58"},
        Wrong{"s4 d8 align=q:3", "'align=q:3'", "align=name:bytes"},
        Wrong{"s4 d8 align=what:4", "'align=what:4'", "align=name"},
        Wrong{"s4 d8 align=q", "'align=q'", "align=name:bytes"}));

// Every word that may stand once is refused a second time, even if it says the same, and so is another on its subject.
TEST(Problem, NoWordSpeaksTwice) {
  const std::vector<std::vector<const char*>> subjects{
      {"fwd"},
      {"align=q:8", "align=k:8"},
      {"lse_strides=1,2,3"},
      {"b2"},
      {"h4", "h4/2"},
      {"s5x9", "s5"},
      {"d8", "d8/16"},
      {"fp32", "bf16"},
      {"out=fp32"},
      {"causal_bottom_right", "causal_top_left", "aligned_top_left", "causal_offset=3", "aligned_offset=3"},
      {"window=1:2", "window=2:2"},
      {"scale=1", "scale=2"},
      {"softcap=3"},
      {"bias=fp32:bhqk", "bias=fp16:11qk"},
      {"mask=b11k"},
      {"alibi"},
      {"sinks"},
      {"score_mod={score}", "score_mod={score * 2}"},
      {"mask_mod={k_index > 2}"},
      {"dropout=0.5"},
      {"seed=7", "seed=8"},
      {"lse"},
      {"layout=bshd", "layout=bhsd", "strides=q:1,2,3;k:1,2,3;v:1,2,3;o:1,2,3"},
      {"cpu", "cuda", "cuda:1"},
      {"varlen=3,4", "varlen=3,4/5,6"},
      {"packed=20:30"},
  };
  for (const auto& words : subjects) {
    for (const std::string first : words) {
      EXPECT_NO_THROW(parse_problem(first)) << first;
      for (const std::string second : words) {
        const std::string line = first + " " + second;
        const auto [code, sentence] = test::said_by([&] { parse_problem(line); });
        EXPECT_EQ(code, ErrorCode::bad_text) << line;
        EXPECT_TRUE(sentence.starts_with("'" + second + "' in \"" + line + "\" conflicts with '" + first + "'"))
            << sentence;
      }
    }
  }
  EXPECT_EQ(parse_problem("s4 score_mod={t[0] + u[1]} buffer=t:fp32:4 buffer=u:fp32:4").mod_buffers.size(), 2u);
}

// A problem that is filled in by hand: no line could say it.
TEST(Problem, FieldsOfAnotherOperatorAreRefused) {
  const struct {
    const char* of;
    void (*set)(Problem&);
    bool (*takes)(Op);
  } fields[] = {
      {"does not support m, n, k or column_bias; flat_gemm and linear do", [](Problem& p) { p.m = 3; },
       [](Op op) { return op->matrices; }},
      {"does not support m, n, k or column_bias; flat_gemm and linear do", [](Problem& p) { p.column_bias = true; },
       [](Op op) { return op->matrices; }},
      {"does not support log, lse_only or row_lse; softmax does", [](Problem& p) { p.log = true; },
       [](Op op) { return op->unit_scale; }},
      {"does not support descale, hadamard or mean; quantize does", [](Problem& p) { p.hadamard = true; },
       [](Op op) { return op == kQuantize; }},
      {"does not support unified_max", [](Problem& p) { p.unified_max = 1.0f; }, [](Op op) { return op == kForward; }},
  };
  for (const char* line : {"s4 d8", "bwd s4 d8", "merge n2 s4 d8", "softmax s4", "softmax_bwd s4", "quantize s4x64",
                           "flat_gemm m2 n3 k4", "linear m2 n3 k4"}) {
    for (const auto& field : fields) {
      Problem p = parse_problem(line);
      field.set(p);
      if (field.takes(p.op)) {
        EXPECT_NO_THROW(validate(p)) << line << ", " << field.of;
        continue;
      }
      const auto [code, sentence] = test::said_by([&] { validate(p); });
      EXPECT_EQ(code, ErrorCode::bad_value) << line << ", " << field.of;
      EXPECT_TRUE(sentence.ends_with(field.of)) << sentence;
    }
  }
}

// A sentence is whole wherever it is read, and of a length that can be.
TEST(Problem, SentencesArePrintable) {
  const std::string nul("f\0wd", 4);
  for (const std::string& line :
       {nul, "s4 score_mod={score + " + nul + "}", "s4 score_mod={t[0]} buffer=" + nul + ":fp32:4", "s4 out=" + nul,
        std::string(100000, 'x'), "s4 score_mod={score " + std::string(100000, 'x') + "}",
        "s4 score_mod={t[0]} buffer=" + std::string(100000, 'x') + ":fp32:4", "b1 " + std::string(100000, '\xff')}) {
    const std::string sentence = test::sentence_of([&] { parse_problem(line); });
    EXPECT_NE(sentence, "") << "accepted";
    EXPECT_LT(sentence.size(), 6000u);
    EXPECT_TRUE(
        std::all_of(sentence.begin(), sentence.end(), [](char c) { return (c >= ' ' && c < 0x7f) || c == '\n'; }));
    EXPECT_TRUE(line != nul || sentence.starts_with("cannot read 'f\\x00wd' in")) << sentence;
  }
}

}  // namespace
}  // namespace onepass
