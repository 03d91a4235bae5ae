// K and V as a cache: pages against the same keys side by side, what is refused, and results that do not depend on the
// rest of the batch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "problem/attention/key_value_view.hpp"
#include "reference/reference.hpp"
#include "support/named_params.hpp"
#include "support/sentence.hpp"

namespace onepass::check {
namespace {

// One batch entry of a call, its keys copied out of their pages, with the same q. as_long: as a cache of the same size,
// with NaN behind its keys.
std::vector<float> alone(const Inputs& in, std::int64_t b, std::string_view implementation, bool as_long) {
  const Problem& p = in.problem;
  const Sequence seq = sequence_of(p, in.tensors, b);
  const auto copied = [&](const ConstTensor& t, const Sequence& from, std::int64_t heads, std::int64_t rows,
                          std::int64_t size) {
    const std::int64_t dim = t.shape[t.rank - 1];
    std::vector<float> numbers;
    const KeyValueView view(t, from);
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t j = 0; j < size; ++j)
        for (std::int64_t d = 0; d < dim; ++d) numbers.push_back(j < rows ? view.element(h, j, d) : NAN);
    return numbers;
  };
  Sequence queries;
  queries.batch = b;
  const std::int64_t size = as_long ? p.seq_k : seq.seq_k;
  const std::vector<float> q = copied(in.tensors.q, queries, p.heads_q, p.seq_q, p.seq_q),
                           k = copied(in.tensors.k, seq, p.heads_kv, seq.seq_k, size),
                           v = copied(in.tensors.v, seq, p.heads_kv, seq.seq_k, size);
  const auto used = static_cast<std::int32_t>(seq.seq_k);
  std::vector<float> out(static_cast<std::size_t>(p.heads_q * p.seq_q * p.dim_v));
  Tensors t;
  t.q = ConstTensor(q.data(), DType::f32, {1, p.heads_q, p.seq_q, p.dim_qk});
  t.k = ConstTensor(k.data(), DType::f32, {1, p.heads_kv, size, p.dim_qk});
  t.v = ConstTensor(v.data(), DType::f32, {1, p.heads_kv, size, p.dim_v});
  if (as_long) t.seqused_k = ConstTensor(&used, DType::i32, {1});
  t.out = Tensor(out.data(), DType::f32, {1, p.heads_q, p.seq_q, p.dim_v});
  Attention attention = in.attention;
  attention.max_seqlen_k = 0;
  attention.batch_invariant = as_long;
  onepass::attention(t, attention, {}, implementation);
  return out;
}

std::vector<float> entry(const Inputs& in, std::int64_t b) {
  const Tensor& t = in.tensors.out;
  std::vector<float> numbers;
  for (std::int64_t h = 0; h < in.problem.heads_q; ++h)
    for (std::int64_t i = 0; i < in.problem.seq_q; ++i)
      for (std::int64_t d = 0; d < in.problem.dim_v; ++d)
        numbers.push_back(static_cast<const float*>(t.data)[row_offset(t, b, h, i) + d]);
  return numbers;
}

class Cache : public testing::TestWithParam<const char*> {};

TEST_P(Cache, IsTheSameKeysSideBySide) {
  Inputs in = make_inputs(parse_problem(GetParam()), 7);
  int compared = 0;
  for (const Implementation* row : plan::implementations()) {
    if (reference::is_reference(*row) || !run_on(*row, in, serial_executor())) continue;
    for (std::int64_t b = 0; b < in.problem.batch; ++b, ++compared) {
      const std::vector<float> got = entry(in, b), expected = alone(in, b, row->name, false);
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-6) << row->name << " of " << b;
    }
  }
  EXPECT_GT(compared, 0);
}

// Bit for bit, whatever the others in the batch are and however the keys lie.
TEST_P(Cache, BatchInvariant) {
  Problem p = parse_problem(GetParam());
  p.batch_invariant = true;
  Inputs in = make_inputs(p, 8);
  int compared = 0;
  for (const Implementation* row : plan::implementations()) {
    if (reference::is_reference(*row) || !run_on(*row, in, serial_executor())) continue;
    for (std::int64_t b = 0; b < in.problem.batch; ++b, ++compared) {
      const std::vector<float> got = entry(in, b), expected = alone(in, b, row->name, true);
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0) << row->name << " of " << b;
    }
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Cpu, Cache,
                         testing::Values("b3 h4/2 s1x300 d64 fp32 kv=paged:16 seqused",
                                         "b5 h4/2 s2x3000 d64 fp32 kv=paged:7 seqused=3000,17,1500,0,2049 "
                                         "causal_bottom_right",
                                         "b3 h2 s40x500 d80/48 fp32 kv=paged:1 seqused causal_bottom_right window=90:0",
                                         "b4 h8/2 s1x5000 d64 fp32 seqused=4999,100,2000,3000",
                                         "b2 h4/1 s30x2500 d64 fp32 kv=paged:64"));

struct Wrong {
  const char* name;
  std::function<void(Inputs&)> spoil;
  const char* sentence;
};
std::int32_t* used(Inputs& in) { return Inputs::writable<std::int32_t>(in.tensors.seqused_k); }
std::int32_t* table(Inputs& in) { return Inputs::writable<std::int32_t>(in.tensors.page_table); }

class WrongCache : public testing::TestWithParam<Wrong> {};
TEST_P(WrongCache, IsRefusedAndWritesNothing) {
  Inputs in = make_inputs(parse_problem("b2 h4/2 s3x40 d8 fp32 kv=paged:16 seqused=40,20 lse"), 2);
  in.poison_outputs();
  const std::vector<std::byte> before(in.buffer(Role::out).data(),
                                      in.buffer(Role::out).data() + in.buffer(Role::out).bytes());
  GetParam().spoil(in);
  test::expect_refused([&] { in.attend(); }, GetParam().sentence);
  EXPECT_EQ(std::memcmp(before.data(), in.buffer(Role::out).data(), before.size()), 0);
}
INSTANTIATE_TEST_SUITE_P(
    Cpu, WrongCache,
    testing::Values(Wrong{"Negative", [](Inputs& in) { used(in)[1] = -1; }, "seqused_k[1] must be 0 to 40 (got -1)"},
                    Wrong{"TooLong", [](Inputs& in) { used(in)[0] = 49; }, "seqused_k[0] must be 0 to 40 (got 49)"},
                    Wrong{"PageBelow", [](Inputs& in) { table(in)[0] = -1; },
                          "page_table[0, 0] must be a page from 0 to 5 (got -1)"},
                    Wrong{"PageBeyond", [](Inputs& in) { table(in)[2] = 6; },
                          "page_table[0, 2] must be a page from 0 to 5 (got 6)"},
                    Wrong{"PackedToo", [](Inputs& in) { in.tensors.cu_seqlens_k = in.tensors.seqused_k; },
                          "keys must be either packed or a cache"},
                    Wrong{"TableOfFloats", [](Inputs& in) { in.tensors.page_table.dtype = DType::f32; },
                          "page_table must be int32"},
                    Wrong{"TableOfOthers", [](Inputs& in) { in.tensors.page_table.shape[0] = 1; },
                          "the batch of page_table must be 2, as in q (got shape [1, 3])"},
                    Wrong{"FlatKeys", [](Inputs& in) { in.tensors.k.rank = 3; },
                          "k must have shape [pages, page_size, heads_kv, dim_qk] with page_table (got "},
                    Wrong{"OtherPages", [](Inputs& in) { in.tensors.v.shape[1] = 8; },
                          "the page size of v must be 16, as in k (got shape "}),
    [](const auto& x) { return x.param.name; });

// Entries behind the last key may be anything; a page beyond them is never looked at.
TEST(Cache, UnusedEntriesAreNotRead) {
  Inputs in = make_inputs(parse_problem("b2 h4/2 s3x40 d8 fp32 kv=paged:16 seqused=33,0 lse"), 2);
  for (const int i : {3, 4, 5}) table(in)[i] = std::numeric_limits<std::int32_t>::min();
  EXPECT_NO_THROW(in.attend());
}

// A plan is good for all lengths.
TEST(Cache, OnePlanForEveryLength) {
  Inputs in = make_inputs(parse_problem("b2 h4/2 s1x400 d64 fp32 kv=paged:16 lse seqused=400,400"), 4);
  const Plan plan = make_plan(in.problem);
  std::vector<std::byte> memory(plan.workspace_bytes() + 64);
  void* at = memory.data();
  std::size_t space = memory.size();
  std::align(64, plan.workspace_bytes(), at, space);
  for (const std::int32_t length : {400, 1, 0, 333}) {
    used(in)[1] = length;
    in.forget();
    in.poison_outputs();
    run(plan, in.tensors, {.workspace = {static_cast<std::byte*>(at), plan.workspace_bytes()}});
    const Verdict verdict = judge(in, serial_executor());
    EXPECT_TRUE(verdict.right) << verdict.sentence;
  }
}

}  // namespace
}  // namespace onepass::check
