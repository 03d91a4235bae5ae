// The problem grammar: printing and parsing are inverse, and what is wrong is named.
#include "onepass/problem.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "onepass/error.hpp"

namespace onepass {
namespace {

bool flip() { return *rc::gen::arbitrary<bool>(); }
std::int64_t among(std::int64_t lo, std::int64_t hi) { return *rc::gen::inRange(lo, hi + 1); }
BroadcastDims spread() { return {flip(), flip(), flip(), flip()}; }
DType data_type() { return *rc::gen::element(DType::f32, DType::f16, DType::bf16); }

void random_lengths(Problem& p) {
  p.varlen = true;
  for (std::int64_t i = 0; i < p.batch; ++i) {
    p.lengths_q.push_back(among(0, 3));
    p.lengths_k.push_back(flip() ? p.lengths_q.back() : among(0, 900));
  }
  const auto sum = [](const auto& v) { return std::accumulate(v.begin(), v.end(), std::int64_t{0}); };
  const auto longest = [](const auto& v) { return *std::max_element(v.begin(), v.end()); };
  p.total_q = sum(p.lengths_q) + (flip() ? 0 : among(1, 9));
  p.total_k = sum(p.lengths_k) + (flip() ? 0 : among(1, 9));
  p.seq_q = longest(p.lengths_q);
  p.seq_k = longest(p.lengths_k);
}

void random_cache(Problem& p) {
  if (p.varlen) p.lengths_k.clear(), p.total_k = 0;
  p.seqused = flip();
  if (p.seqused && flip())
    for (std::int64_t i = 0; i < p.batch; ++i) p.lengths_k.push_back(among(0, p.seq_k));
  if (p.seqused && flip()) return;
  p.page_size = among(1, 100);
  p.max_pages = (p.seq_k + p.page_size - 1) / p.page_size + among(0, 1);
  p.pages = flip() ? p.batch * p.max_pages : among(0, 50);
}

Problem random_problem() {
  Problem p;
  p.batch = among(1, 5);
  p.heads_kv = among(1, 4);
  p.heads_q = p.heads_kv * among(0, 4);
  p.seq_q = among(0, 3000);
  p.seq_k = flip() ? p.seq_q : among(0, 100000);
  p.dim_qk = among(1, 256);
  p.dim_v = flip() ? p.dim_qk : among(1, 256);
  if (among(0, 9) == 0) p.dim_qk = 576, p.dim_v = 512;
  p.dtype = data_type();
  p.out_dtype = flip() ? p.dtype : DType::f32;
  if (flip()) p.device = {DeviceKind::cuda, static_cast<int>(among(0, 7))};
  p.band.causal = flip();
  p.band.align = *rc::gen::element(Align::top_left, Align::bottom_right, Align::offset);
  if (p.band.align == Align::offset)
    p.band.offset = flip() ? among(-3000, 3000) : among(-1, 1) * (std::int64_t{1} << 60);
  p.band.left = flip() ? -1 : among(0, 5000);
  p.band.right = flip() ? -1 : among(0, 5000);
  if (flip()) p.scale = static_cast<double>(among(-1000, 1000)) / 7;
  if (flip()) p.softcap = static_cast<float>(among(1, 1000)) / 7;
  if (flip()) p.bias = BiasSpec{data_type(), spread()};
  if (flip()) p.bool_mask = spread();
  p.alibi = flip();
  p.sinks = flip();
  if (flip()) {
    p.score_mod = *rc::gen::element("score", "table[q_index - k_index]\n  + (score * {2})", " score");
    if (flip()) p.mask_mod = "k_index <= q_index || rel(0, head)";
    p.mod_buffers = {{"table", data_type(), 1, {among(1, 99), 1, 1, 1}},
                     {"rel", DType::i32, 2, {among(1, 9), 4, 1, 1}}};
    p.device.kind = DeviceKind::cuda;  // which takes texts that the CPU does not read
  }
  if (flip()) p.dropout_p = static_cast<float>(among(1, 1000)) / 1000;
  if (flip()) p.seed = *rc::gen::arbitrary<std::uint64_t>();
  p.want_lse = flip();
  if (flip()) {
    p.op = Op::backward;
    p.want_lse = false;
    p.gradients = {flip(), flip(), flip(), p.bias && flip(), p.sinks && flip(), p.alibi && flip()};
    if (p.gradients == Gradients{}) p.gradients.dv = true;
    p.grad_dtype = flip() ? DType::f32 : p.dtype;
    p.dlse = flip();
    p.deterministic = flip();
  }
  if (among(0, 3) == 0) random_lengths(p);
  if (p.op == Op::forward && among(0, 2) == 0) random_cache(p);
  p.batch_invariant = p.op == Op::forward && flip();
  flip() ? set_bshd(p) : set_contiguous(p);
  if (flip()) {
    for (Dims* s : {&p.layout.q, &p.layout.k, &p.layout.v, &p.layout.out, &p.layout.dout, &p.layout.dk}) {
      if (*s == Dims{}) continue;  // not of this operator
      for (int i = 0; i < 3; ++i) (*s)[i] = among(-10, std::int64_t{1} << 40);
    }
  }
  return p;
}

RC_GTEST_PROP(Problem, PrintsAndParses, ()) {
  const Problem p = random_problem();
  validate(p);
  const std::string line = to_string(p);
  RC_LOG() << line << "\n";
  RC_ASSERT(parse_problem(line) == p);
  RC_ASSERT(to_string(parse_problem(line)) == line);
}

TEST(Problem, DefaultsAndShortForms) {
  const Problem p = parse_problem("  s5\tb2 h4  d16 ");
  EXPECT_EQ(to_string(p), "fwd b2 h4 s5 d16 fp32");
  EXPECT_EQ(p.heads_kv, 4);
  EXPECT_EQ(p.seq_k, 5);
  EXPECT_EQ(p.dim_v, 16);
  EXPECT_EQ(p.layout.q, (Dims{4 * 5 * 16, 5 * 16, 16, 1}));
  EXPECT_DOUBLE_EQ(p.effective_scale(), 0.25);
  EXPECT_EQ(parse_problem("b2 h4 s5 d16 layout=bshd").layout.k, (Dims{5 * 4 * 16, 16, 4 * 16, 1}));
  const Problem packed = parse_problem("h2 d8 varlen=3x2,1/4,0,9");
  EXPECT_EQ(packed.batch, 3);
  EXPECT_EQ(packed.total_q, 7);
  EXPECT_EQ(packed.total_k, 13);
  EXPECT_EQ(packed.seq_k, 9);
  EXPECT_EQ(packed.layout.q, (Dims{0, 8, 16, 1}));
}

// Where a dimension has size 1 its stride does not matter, and is 0 in every layout.
TEST(Problem, StridesOfSizeOneAreZero) {
  const Problem p = parse_problem("b1 h1 s1x3 d4");
  EXPECT_EQ(p.layout.q, (Dims{0, 0, 0, 1}));
  EXPECT_EQ(p.layout.k, (Dims{0, 0, 4, 1}));
}

struct Wrong {
  const char *line, *word, *expected;  // the sentence names the word and what would be accepted
};
class BadLine : public testing::TestWithParam<Wrong> {};
TEST_P(BadLine, IsRefusedInASentence) {
  const auto& [line, word, expected] = GetParam();
  try {
    parse_problem(line);
    ADD_FAILURE() << "accepted: " << line;
  } catch (const Error& e) {
    const std::string sentence = e.what();
    EXPECT_NE(sentence.find(word), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(expected), std::string::npos) << sentence;
    EXPECT_NE(e.code(), ErrorCode::ok);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Problem, BadLine,
    testing::Values(
        Wrong{"b2 h4 s5 d16 fp31", "'fp31'", "a word of the problem grammar"}, Wrong{"bx", "'bx'", "a word"},
        Wrong{"b2x", "'b2x'", "b<batch>"}, Wrong{"b99999999999999999999", "'b99999999999999999999'", "b<batch>"},
        Wrong{"h4/", "'h4/'", "h<query heads>[/<K/V heads>]"}, Wrong{"h4/2/1", "'h4/2/1'", "h<query heads>"},
        Wrong{"s5x", "'s5x'", "s<queries>[x<keys>]"}, Wrong{"d1.5", "'d1.5'", "d<dim of q and k>[/<dim of v>]"},
        Wrong{"h4/3 s5 d8", "heads_q = 4", "no multiple of heads_kv = 3"},
        Wrong{"h4/0 s5 d8", "heads_q = 4", "heads_kv = 0"}, Wrong{"b-1", "'b-1'", "a word"},
        Wrong{"b1 s5 d0", "dim_qk is 0", "1 to 256, or the pair 576/512"},
        Wrong{"b1 s5 d257", "dim_qk is 257", "1 to 256"}, Wrong{"b1 s5 d64/512", "dim_v is 512", "1 to 256"},
        Wrong{"b1 s5 d576", "dim_qk is 576", "576/512"},
        Wrong{"s5 d8 fp8_e4m3", "q, k and v is fp8_e4m3", "fp32, fp16 and bf16"},
        Wrong{"s5 d8 out=int32", "out is int32", "fp32, fp16 and bf16"},
        Wrong{"s5 d8 bf16 out=fp16", "out is fp16", "bf16, as q, or fp32"}, Wrong{"s5 d8 out=half", "'half'", "fp32"},
        Wrong{"s5 d8 window=3", "'window=3'", "window=left:right"},
        Wrong{"s5 d8 window=-2:0", "left side is -2", "-1 (unbounded)"},
        Wrong{"s5 d8 window=0:-5", "right side is -5", "-1 (unbounded)"},
        Wrong{"s5 d8 scale=inf", "scale is inf", "a number from -2.3e38 to 2.3e38"},
        Wrong{"s5 d8 scale=-1e39", "scale is -1e+39", "a number from -2.3e38 to 2.3e38"},
        Wrong{"s5 d8 causal_offset", "'causal_offset'", "a word"},
        Wrong{"s5 d8 causal_offset=", "'causal_offset='", "causal_offset=keys"},
        Wrong{"s5 d8 aligned_offset=1.5", "'aligned_offset=1.5'", "aligned_offset=keys"},
        Wrong{"s5 d8 causal_offset=1152921504606846977", "offset is 1152921504606846977", "-2^60 to 2^60"},
        Wrong{"s5 d8 causal_offset=3 causal_top_left", "'causal_top_left'", "beside 'causal_offset=3'"},
        Wrong{"s5 d8 scale=one", "'scale=one'", "a number"},
        Wrong{"s5 d8 softcap=-1", "softcap is -1", "0 (none) or a positive number"},
        Wrong{"s5 d8 softcap=nan", "softcap is nan", "positive"},
        Wrong{"s5 d8 dropout=1.5", "dropout_p is 1.5", "0 to 1"},
        Wrong{"s5 d8 dropout=nan", "dropout_p is nan", "0 to 1"}, Wrong{"s5 d8 seed=-1", "'seed=-1'", "an integer"},
        Wrong{"s5 d8 mask=bh", "'mask=bh'", "a spread such as bhqk or 11qk"},
        Wrong{"s5 d8 mask=kqhb", "'mask=kqhb'", "a spread"},
        Wrong{"s5 d8 bias=bhqk", "'bias=bhqk'", "bias=dtype:spread"},
        Wrong{"s5 d8 bias=int32:bhqk", "bias is int32", "fp32, fp16 and bf16"},
        Wrong{"h1 d8 varlen=3,x", "'varlen=3,x'", "lengths such as 3,7,128x4"},
        Wrong{"h1 d8 varlen=3,-1", "'varlen=3,-1'", "lengths from 0"},
        Wrong{"h1 d8 varlen=3,4/5", "'varlen=3,4/5'", "as many lengths of k as of q"},
        Wrong{"h1 d8 varlen=1x9999999", "'varlen=1x9999999'", "at most 1048576"},
        Wrong{"h1 d8 packed=3", "'packed=3'", "packed=total_q:total_k"},
        Wrong{"h1 s4 d8 strides=q:1,2,3", "'strides=q:1,2,3'", "strides=q:batch,head,token"},
        Wrong{"h1 s4 d8 strides=q:1,2;k:1,2,3;v:1,2,3;o:1,2,3", "strides", "batch,head,token"},
        Wrong{"h1 s4 d8 strides=q:1,2,z;k:1,2,3;v:1,2,3;o:1,2,3", "strides", "three integers"},
        Wrong{"h1 s4 d8 layout=hbsd", "'layout=hbsd'", "a word"}, Wrong{"s4 d8 cuda:x", "'cuda:x'", "a device number"},
        Wrong{"s4 d8 unknown=3", "'unknown=3'", "docs/problem.md"},
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
        Wrong{"b3 d8 varlen=1,2", "2 lengths of q", "a batch of 3"},
        Wrong{"s4 d8 varlen=1,9", "a length of q is 9", "0 to 4 is accepted"},
        Wrong{"d8 varlen=4,4 packed=7:8", "the lengths of q add up to 8", "beyond its 7 tokens"},
        Wrong{"fwd\x80 s4", "'fwd\\x80'", "a word"},
        Wrong{"s4 gr\xc3\xb6\xc3\x9f", "'gr\\xc3\\xb6\\xc3\\x9f'", "a word"},
        Wrong{"s4 score_mod={score + \xc3\xa9}", "score_mod, column 9: the byte '\\xc3'", "only printable ASCII"},
        Wrong{"s4 mask_mod={k_index\x7f} cuda", "mask_mod, column 8: the byte '\\x7f'", "only printable ASCII"},
        Wrong{"s4 score_mod={t[0]} buffer=\xc3\xa9:fp32:4", "the mod buffer name '\\xc3\\xa9'", "letters, digits"},
        Wrong{"s4 d8 score_mod=score", "'score_mod=score'", "an expression in braces"},
        Wrong{"s4 d8 score_mod={score", "'score_mod={score'", "an expression in braces"},
        Wrong{"s4 d8 score_mod={score + x}", "score_mod, column 9: 'x'", "score, batch, head, q_index, k_index"},
        Wrong{"s4 d8 mask_mod={q_index >=}", "mask_mod, column 11", "a value is expected"},
        Wrong{"s4 d8 score_mod={(score} cuda", "column 1: '('", "never closed"},
        Wrong{"s4 d8 score_mod={#if} cuda", "'#'", "not accepted"},
        Wrong{"s4 d8 score_mod={score; f()} cuda", "';'", "one expression is accepted"},
        Wrong{"s4 d8 buffer=t:fp32:4", "mod buffers", "neither a score_mod nor a mask_mod"},
        Wrong{"s4 d8 score_mod={score} buffer=t", "'buffer=t'", "buffer=name:dtype:sizes"},
        Wrong{"s4 d8 score_mod={score} buffer=t:fp32:1x2x3x4x5", "'buffer=t:fp32:1x2x3x4x5'", "at most 4 sizes"},
        Wrong{"s4 d8 score_mod={score} buffer=t:fp8_e4m3:4", "mod buffer t is fp8_e4m3",
              "fp32, fp16, bf16, int32 and bool"},
        Wrong{"s4 d8 score_mod={score} buffer=t:fp32:0", "mod buffer t has size 0 in dimension 0", "1 to 2147483647"},
        Wrong{"s4 d8 score_mod={score} buffer=score:fp32:4", "'score'", "a word that expressions use otherwise"},
        Wrong{"s4 d8 score_mod={score} buffer=4:fp32:4", "'4'", "a letter and then"},
        Wrong{"s4 d8 score_mod={score} buffer=t:fp32:4 buffer=t:fp32:4", "two mod buffers", "named t"},
        Wrong{"s4x3000000000 d8 score_mod={score}", "3000000000 long", "count to 2147483647"},
        Wrong{"b4000000000 h4000000000 s4 d8", "2^62", "more than"},
        Wrong{"s4000000000000 d8", "the score matrix", "2^62"},
        Wrong{"merge n0 s4 d8", "0 partial results", "at least 1"},
        Wrong{"merge s4 d8", "0 partial results", "at least 1"},
        Wrong{"merge n2 s4 d8 alibi", "'alibi' says nothing about merge", "docs/problem.md"},
        Wrong{"merge n2 s4 d8 strides=q:1,2,3;k:1,2,3;v:1,2,3;o:1,2,3", "merge takes no buffer", "out_strides"},
        Wrong{"s4 d8 n2", "'n2' says nothing about fwd", "docs/problem.md"},
        Wrong{"s4 d8 bias=fp32:11qk bias_strides=1,2", "'bias_strides=1,2'", "a stride for each dimension"},
        Wrong{"s4 d8 what_strides=1,2", "'what_strides=1,2'", "a word of the problem grammar"},
        Wrong{"s4 d8 lse lse_strides=0,0,999999999999999999", "lse has stride 999999999999999999", "2^58"},
        Wrong{"s4 d8 align=q:3", "'align=q:3'", "align=name:bytes"},
        Wrong{"s4 d8 align=what:4", "'align=what:4'", "align=name"},
        Wrong{"s4 d8 align=q", "'align=q'", "align=name:bytes"}));

// What side tensors and addresses add to a line; what is as usual is not printed.
TEST(Problem, StridesAndAlignmentsBesideTheMainTensors) {
  const auto printed = [](const char* line) { return to_string(parse_problem(line)); };
  EXPECT_EQ(printed("s4x8 d8 bias=fp32:11qk bias_strides=0,0,16,2"),
            "fwd b1 h1 s4x8 d8 fp32 bias=fp32:11qk bias_strides=0,0,16,2");
  EXPECT_EQ(printed("s4x8 d8 bias=fp32:11qk bias_strides=0,0,8,1"), "fwd b1 h1 s4x8 d8 fp32 bias=fp32:11qk");
  EXPECT_EQ(printed("b2 h4 s4 d8 alibi alibi_slopes_strides=4,1 sinks sinks_strides=3 lse lse_strides=1,8,2"),
            "fwd b2 h4 s4 d8 fp32 alibi sinks lse alibi_slopes_strides=4,1 sinks_strides=3 lse_strides=1,8,2");
  EXPECT_EQ(printed("s4 d8 align=v:2,q:8,k:16 cuda"), "fwd b1 h1 s4 d8 fp32 align=q:8,v:2 cuda:0");
  const Problem p = parse_problem("b2 h4 s4 d8 bias=bf16:bhqk bias_strides=9,99,999,1 align=bias:2 layout=bshd cuda");
  EXPECT_EQ(p.layout.bias, (Dims{9, 99, 999, 1}));
  EXPECT_EQ(parse_problem(to_string(p)), p);
}

TEST(Problem, OfAMerge) {
  for (const char* line :
       {"merge n3 b1 h1 s5 d8 fp32", "merge n1 b2 h4 s5 d0 bf16 out=fp16 lse layout=bshd",
        "merge n2 b2 h4 s5 d8 fp16 out=fp32 lse out_strides=1000,200,8 lse_strides=1,2,8 align=out:8 cuda:1"}) {
    EXPECT_EQ(to_string(parse_problem(line)), line);
    EXPECT_EQ(parse_problem(to_string(parse_problem(line))), parse_problem(line));
  }
}

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
        try {
          parse_problem(line);
          ADD_FAILURE() << "accepted: " << line;
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::bad_text);
          EXPECT_EQ(std::string(e.what()).rfind(
                        "'" + second + "' in \"" + line + "\" is one word too many beside '" + first + "'", 0),
                    0u)
              << e.what();
        }
      }
    }
  }
  EXPECT_EQ(parse_problem("s4 score_mod={t[0] + u[1]} buffer=t:fp32:4 buffer=u:fp32:4").mod_buffers.size(), 2u);
}

// A sentence is whole wherever it is read, and of a length that can be.
TEST(Problem, SentencesArePrintable) {
  const std::string nul("f\0wd", 4);
  for (const std::string& line :
       {nul, "s4 score_mod={score + " + nul + "}", "s4 score_mod={t[0]} buffer=" + nul + ":fp32:4", "s4 out=" + nul,
        std::string(100000, 'x'), "s4 score_mod={score " + std::string(100000, 'x') + "}",
        "s4 score_mod={t[0]} buffer=" + std::string(100000, 'x') + ":fp32:4", "b1 " + std::string(100000, '\xff')}) {
    try {
      parse_problem(line);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      const std::string_view sentence = e.what();
      EXPECT_LT(sentence.size(), 6000u);
      EXPECT_TRUE(
          std::all_of(sentence.begin(), sentence.end(), [](char c) { return (c >= ' ' && c < 0x7f) || c == '\n'; }));
      EXPECT_TRUE(line != nul || sentence.starts_with("cannot read 'f\\x00wd' in")) << sentence;
    }
  }
}

// "s" and "packed" may be more than the lengths need.
TEST(Problem, LengthsStandBesideRoomForMore) {
  const Problem p = parse_problem("b2 s9x10 d8 varlen=1,2/3,4 packed=5:9");
  EXPECT_EQ(p.seq_q, 9);
  EXPECT_EQ(p.seq_k, 10);
  EXPECT_EQ(p.total_q, 5);
  EXPECT_EQ(p.total_k, 9);
  EXPECT_EQ(parse_problem(to_string(p)), p);
}

TEST(Problem, ValidateNamesNegativeSizesAndLengths) {
  const auto sentence = [](auto change) {
    Problem p = parse_problem("b2 h2 s4 d8");
    change(p);
    try {
      validate(p);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(sentence([](Problem&) {}), "nothing");
  EXPECT_EQ(sentence([](Problem& p) { p.batch = -1; }), "batch is -1; 0 or more is accepted");
  EXPECT_EQ(sentence([](Problem& p) { p.device = {DeviceKind::cuda, -1}; }),
            "the CUDA device's number is -1; 0 or more is accepted");
  EXPECT_EQ(sentence([](Problem& p) { p.seq_q = -1; }), "seq_q is -1; 0 or more is accepted");
  EXPECT_EQ(sentence([](Problem& p) { p.total_k = -3; }), "total_k is -3; 0 or more is accepted");
  EXPECT_EQ(sentence([](Problem& p) { p.band.right = INT64_MAX; }),
            "the window's right side is 9223372036854775807; -1 (unbounded) to 2^60 is accepted");
  EXPECT_EQ(sentence([](Problem& p) { p.dtype = DType{77}; }), "dtype 77 is unknown; values of DType, 0 to 5, are");
  EXPECT_EQ(sentence([](Problem& p) { p.device.kind = DeviceKind{2}; }),
            "the device is of kind 2; a value of DeviceKind is expected");
  EXPECT_EQ(sentence([](Problem& p) { p.band.align = Align{3}; }),
            "the band's align is 3; a value of Align is expected");
  EXPECT_EQ(sentence([](Problem& p) {
              p.mod_buffers = {{"t", DType::f32, 77, {1, 1, 1, 1}}};
              p.score_mod = "score";
            }),
            "mod buffer t has 77 dimensions; 1 to 4 are accepted");
  EXPECT_EQ(sentence([](Problem& p) { p.batch = 3, p.layout.q[0] = INT64_MIN; }),
            "q has stride -9223372036854775808 in a dimension of 3; it may span 2^58 elements");
  EXPECT_EQ(sentence([](Problem& p) { p.batch = 3, p.layout.out[0] = (std::int64_t{1} << 57) + 1; }),
            "out has stride 144115188075855873 in a dimension of 3; it may span 2^58 elements");
  EXPECT_EQ(sentence([](Problem& p) { p.batch = 1, p.layout.q[0] = INT64_MAX; }), "nothing");
  const auto packed = [](Problem& p) {
    p.varlen = true;
    p.lengths_q = p.lengths_k = {4, 4};
    p.total_q = p.total_k = 8;
  };
  EXPECT_EQ(sentence(packed), "nothing");
  EXPECT_EQ(sentence([&](Problem& p) { packed(p), p.lengths_k.pop_back(); }), "1 lengths of k for a batch of 2");
  EXPECT_EQ(sentence([&](Problem& p) { packed(p), p.lengths_q[1] = 5; }), "a length of q is 5; 0 to 4 is accepted");
  EXPECT_EQ(sentence([&](Problem& p) { packed(p), p.lengths_q[1] = -1; }), "a length of q is -1; 0 to 4 is accepted");
  EXPECT_EQ(sentence([&](Problem& p) { packed(p), p.total_k = 7; }),
            "the lengths of k add up to 8, beyond its 7 tokens");
}

}  // namespace
}  // namespace onepass
