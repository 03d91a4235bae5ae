// The problem grammar: printing and parsing are inverse, and what is wrong is named.
#include "problem/problem.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "onepass/error.hpp"
#include "support/property.hpp"
#include "support/sentence.hpp"

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
  p.max_pages = (p.seq_k + p.page_size - 1) / p.page_size + (p.seq_k > 0 ? among(0, 1) : 0);
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
  p.band.right = flip() ? -1 : p.band.causal ? 0 : among(0, 5000);
  if (flip()) p.scale = static_cast<double>(among(-1000, 1000)) / 7;
  if (flip()) p.softcap = static_cast<float>(among(1, 1000)) / 7;
  if (flip()) p.bias = BiasSpec{data_type(), spread()};
  if (flip()) p.bool_mask = spread();
  if (flip()) p.block_mask = spread(), p.mask_tile_q = among(0, 300), p.mask_tile_k = among(0, 300);
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
  p.dropout_seed = flip();
  if (!p.dropout_seed && flip()) p.seed = *rc::gen::arbitrary<std::uint64_t>();
  p.want_lse = flip();
  p.want_row_max = flip();
  p.entropy = flip();
  if (flip()) {
    p.op = kBackward;
    p.want_lse = p.want_row_max = false;
    p.gradients = {flip(), flip(), flip(), p.bias && flip(), p.sinks && flip(), p.alibi && flip()};
    if (p.gradients == Gradients{}) p.gradients.dv = true;
    p.grad_dtype = flip() ? DType::f32 : p.dtype;
    p.dlse = flip();
    p.dentropy = p.entropy;
    p.deterministic = flip();
  }
  if (among(0, 3) == 0) random_lengths(p);
  if (p.op == kForward && among(0, 2) == 0) random_cache(p);
  p.batch_invariant = p.op == kForward && flip();
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
  const Problem p = *rc::gen::exec(random_problem);
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

// The words of side tensors and addresses in a line; usual ones are not printed.
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
    return test::sentence_of([&] { validate(p); });
  };
  EXPECT_EQ(sentence([](Problem&) {}), "");
  EXPECT_EQ(sentence([](Problem& p) { p.batch = -1; }), "batch must be 0 or more (got -1)");
  EXPECT_EQ(sentence([](Problem& p) { p.device = {DeviceKind::cuda, -1}; }),
            "the CUDA device's number must be 0 or more (got -1)");
  EXPECT_EQ(sentence([](Problem& p) { p.seq_q = -1; }), "seq_q must be 0 or more (got -1)");
  EXPECT_EQ(sentence([](Problem& p) { p.total_k = -3; }), "total_k must be 0 or more (got -3)");
  EXPECT_EQ(sentence([](Problem& p) { p.band.right = INT64_MAX; }),
            "the window's right side must be -1 (unbounded) to 2^60 (got 9223372036854775807)");
  EXPECT_EQ(sentence([](Problem& p) { p.dtype = DType{77}; }), "dtype must be a value of DType, 0 to 6 (got 77)");
  EXPECT_EQ(sentence([](Problem& p) { p.device.kind = DeviceKind{2}; }),
            "the device kind must be a value of DeviceKind (got 2)");
  EXPECT_EQ(sentence([](Problem& p) { p.band.align = Align{3}; }), "the band's align must be a value of Align (got 3)");
  EXPECT_EQ(sentence([](Problem& p) {
              p.mod_buffers = {{"t", DType::f32, 77, {1, 1, 1, 1}}};
              p.score_mod = "score";
            }),
            "mod buffer t must have 1 to 4 dimensions (got 77)");
  EXPECT_EQ(sentence([](Problem& p) { p.batch = 3, p.layout.q[0] = INT64_MIN; }),
            "a dimension of q must span at most 2^58 elements (got size 3 and stride -9223372036854775808)");
  EXPECT_EQ(sentence([](Problem& p) { p.batch = 3, p.layout.out[0] = (std::int64_t{1} << 57) + 1; }),
            "a dimension of out must span at most 2^58 elements (got size 3 and stride 144115188075855873)");
  EXPECT_EQ(sentence([](Problem& p) { p.batch = 1, p.layout.q[0] = INT64_MAX; }), "");
  const auto packed = [](Problem& p) {
    p.varlen = true;
    p.lengths_q = p.lengths_k = {4, 4};
    p.total_q = p.total_k = 8;
  };
  EXPECT_EQ(sentence(packed), "");
  EXPECT_EQ(sentence([&](Problem& p) { packed(p), p.lengths_k.pop_back(); }),
            "the number of lengths of k must be 2, as batch (got 1)");
  EXPECT_EQ(sentence([&](Problem& p) { packed(p), p.lengths_q[1] = 5; }), "lengths of q must be 0 to 4 (got 5)");
  EXPECT_EQ(sentence([&](Problem& p) { packed(p), p.lengths_q[1] = -1; }), "lengths of q must be 0 to 4 (got -1)");
  EXPECT_EQ(sentence([&](Problem& p) { packed(p), p.total_k = 7; }),
            "the sum of the lengths of k must be at most 7, its number of tokens (got 8)");
}

}  // namespace
}  // namespace onepass
