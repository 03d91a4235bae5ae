// The words of a problem line about a cache.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "onepass/onepass.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

TEST(Problem, ACacheHasLengthsOfItsOwnAndPages) {
  const Problem p = parse_problem("h4/2 s1x100 d16 kv=paged:16 seqused=3,100,0");
  EXPECT_EQ(to_string(p), "fwd b3 h4/2 s1x100 d16 fp32 kv=paged:16 seqused=3,100,0");
  EXPECT_EQ(p.max_pages, 7);
  EXPECT_EQ(p.pages, 21);
  EXPECT_EQ(p.layout.k, (Dims{16 * 2 * 16, 16, 2 * 16, 1}));  // page, head, token
  const Problem packed = parse_problem("h2 d8 varlen=3x2,1 seqused=4,0,9 kv=paged:4:10:5 batch_invariant");
  EXPECT_EQ(packed.seq_k, 9);
  EXPECT_EQ(packed.total_q, 7);
  EXPECT_EQ(packed.total_k, 0);
  EXPECT_EQ(to_string(packed), "fwd b3 h2 s3x9 d8 fp32 varlen=3x2,1 kv=paged:4:10:5 seqused=4,0,9 batch_invariant");
}

TEST(Problem, VMayBeAViewOfK) {
  const Problem p = parse_problem("h16/1 s1x100 d576/512 bf16 kv=paged:16 v_in_k");
  EXPECT_EQ(to_string(p), "fwd b1 h16/1 s1x100 d576/512 bf16 kv=paged:16 v_in_k");
  EXPECT_EQ(p.layout.v, p.layout.k);
  EXPECT_EQ(parse_problem("b2 h4 s3x9 d8/6 layout=bshd v_in_k").layout.v[2], 4 * 8);

  std::vector<float> memory(3 * 100 * 16);
  Tensors t;
  t.q = ConstTensor(memory.data(), DType::f32, {1, 2, 3, 16});
  t.k = ConstTensor(memory.data(), DType::f32, {1, 1, 100, 16});
  t.v = t.k;
  t.v.shape[3] = 12;
  t.out = Tensor(memory.data(), DType::f32, {1, 2, 3, 12});
  EXPECT_TRUE(problem_of(t, {}).v_in_k);
  const Plan plan = make_plan(problem_of(t, {}));
  t.v.data = memory.data() + 1;  // the same strides from another place
  EXPECT_FALSE(problem_of(t, {}).v_in_k);
  EXPECT_THROW(run(plan, t), Error);
}

TEST(Problem, WrongWordsOfACacheAreNamed) {
  const struct {
    const char *line, *sentence;
  } wrong[] = {
      {"s4 kv=paged:0", "it must be kv=paged:page_size[:pages:pages of a sequence]"},
      {"s4 kv=flat:3", "it must be kv=paged:page_size[:pages:pages of a sequence]"},
      {"s4x9 kv=paged:4:9:2", "seq_k must be at most 8, the keys of 2 pages of 4 (got 9)"},
      {"s4x0 kv=paged:4:9:2", "seq_k must be 1 or more if a sequence has pages"},
      {"varlen=2/3 seqused", "varlen= must have only lengths of queries with a cache"},
      {"s4 d8/9 v_in_k", "with v_in_k, dim_v must be at most 8, as dim_qk (got 9)"},
      {"bwd s4 v_in_k", "bwd does not support 'v_in_k'"},
      {"s4 d8/6 v_in_k strides=q:32,32,8;k:32,32,8;v:24,24,6;o:24,24,6", "with v_in_k, v must have the strides of k"},
      {"bwd s4 seqused", "bwd does not support 'seqused'"},
      {"s4 seqused=5", "lengths of k must be 0 to 4 (got 5)"}};
  for (const auto& [line, sentence] : wrong) {
    const std::string said = test::sentence_of([&line = line] { (void)parse_problem(line); });
    EXPECT_NE(said.find(sentence), std::string::npos) << line << ": " << said;
  }
}

}  // namespace
}  // namespace onepass
