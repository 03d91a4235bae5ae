// append_kv on the CPU: against a plain loop in float64, and what it refuses.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "onepass/onepass.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "support/append_specs.hpp"
#include "support/sentence.hpp"

namespace onepass::check {
namespace {

TEST(Append, IsThePlainLoop) {
  for (const AppendSpec& spec : append_specs()) {
    AppendCase c(spec);
    append_kv(c.tensors, spec.interleaved);
    const std::string bytes = c.output_bytes();
    c.expect_right();
    AppendCase alone(spec);
    append_kv(alone.tensors, spec.interleaved, {.executor = &serial_executor()});
    EXPECT_EQ(alone.output_bytes(), bytes) << spec.name;
  }
}

TEST(Append, ThenAttendingIsAttendingToAll) {
  constexpr std::int64_t kKeys = 20, kDim = 16;
  std::vector<float> all(2 * kKeys * kDim), cache(2 * 32 * kDim, std::nanf("")), out(kDim), expected(kDim);
  std::mt19937 random(1);
  for (float& x : all) x = std::normal_distribution<float>()(random);
  const auto tokens = [&](std::int64_t kv, std::int64_t from, std::int64_t count) {
    return ConstTensor(all.data() + (kv * kKeys + from) * kDim, DType::f32, {1, 1, count, kDim});
  };
  const auto half = [&](std::int64_t kv) {
    return Tensor(cache.data() + kv * 32 * kDim, DType::f32, {1, 1, 32, kDim});
  };
  std::int32_t used = 0;
  const ConstTensor lengths(&used, DType::i32, {1});
  for (const std::int64_t count : {13, 1, 0, 6}) {
    append_kv({.k_new = tokens(0, used, count),
               .v_new = tokens(1, used, count),
               .k = half(0),
               .v = half(1),
               .cache_seqlens = lengths});
    used += static_cast<std::int32_t>(count);
  }
  const ConstTensor q = tokens(0, 3, 1);
  attention(
      {.q = q, .k = half(0), .v = half(1), .out = {out.data(), DType::f32, {1, 1, 1, kDim}}, .seqused_k = lengths});
  attention({.q = q,
             .k = tokens(0, 0, kKeys),
             .v = tokens(1, 0, kKeys),
             .out = {expected.data(), DType::f32, {1, 1, 1, kDim}}});
  for (std::size_t i = 0; i < kDim; ++i) EXPECT_NEAR(out[i], expected[i], 2e-6);
}

TEST(Append, ANanReachesItsPairAndNoOther) {
  AppendCase c({.name = "NaN", .heads_kv = 1, .dim_qk = 8, .dim_v = 8, .rotary_dim = 6, .used = {2}, .lengths = {1}});
  auto* x = static_cast<float*>(const_cast<void*>(c.tensors.k_new.data));
  x[1] = std::nanf(""), x[7] = std::numeric_limits<float>::infinity();
  append_kv(c.tensors);
  const float* y = static_cast<const float*>(c.tensors.k.data) + 2 * 8;
  for (const int d : {0, 2, 3, 5, 6}) EXPECT_TRUE(std::isfinite(y[d])) << d;
  for (const int d : {1, 4}) EXPECT_TRUE(std::isnan(y[d])) << d;
  EXPECT_EQ(y[7], x[7]);
}

// Views of one buffer that lie between each other, as caches of one allocation do.
TEST(Append, KAndVMayInterleave) {
  std::vector<float> both(2 * 2 * 10 * 4, -1), fresh{1, 2, 3, 4};
  const std::int32_t used = 5;
  const auto half = [&](int kv) { return Tensor(both.data() + 4 * kv, DType::f32, {1, 2, 10, 4}, {160, 80, 8, 1}); };
  const ConstTensor one(fresh.data(), DType::f32, {1, 2, 1, 4}, {0, 0, 0, 1});
  append_kv({.k_new = one, .v_new = one, .k = half(0), .v = half(1), .cache_seqlens = {&used, DType::i32, {1}}});
  for (std::size_t i = 0; i < both.size(); ++i) EXPECT_EQ(both[i], i / 8 % 10 == 5 ? fresh[i % 4] : -1.0f) << i;
}

struct Refusal {
  const char* words;
  ErrorCode code;
  std::function<void(AppendCase&)> spoil;
};

void expect_refused(const AppendSpec& spec, const std::vector<Refusal>& refusals) {
  for (const Refusal& r : refusals) {
    AppendCase c(spec);
    r.spoil(c);
    test::expect_refused([&] { append_kv(c.tensors); }, r.words, r.code);
    c.expect_untouched();
  }
}

std::int32_t* numbers(const ConstTensor& t) { return static_cast<std::int32_t*>(const_cast<void*>(t.data)); }

TEST(Append, RefusesWithNothingWritten) {
  const AppendSpec spec{.name = "refused",
                        .dtype = DType::bf16,
                        .heads_q = 2,
                        .dim_qk = 16,
                        .dim_v = 8,
                        .rotary_dim = 12,
                        .used = {3, 30},
                        .lengths = {2, 5},
                        .packed = true,
                        .page_size = 10};
  const auto set = [](auto role, int i, std::int32_t to) {
    return [=](AppendCase& c) {
      numbers(c.tensors.*role)[i] = to;
      for (AppendCase::Memory& m : c.memory) m.before = m.bytes;
    };
  };
  using T = AppendTensors;
  const std::vector<Refusal> refusals{
      {"k_new must be given", ErrorCode::bad_shape, [](AppendCase& c) { c.tensors.k_new = {}; }},
      {"cache_seqlens or slot_mapping must be given", ErrorCode::bad_shape,
       [](AppendCase& c) { c.tensors.cache_seqlens = {}; }},
      {"the number of tokens of v_new must be 6, as in k_new (got shape [7, 2, 8])", ErrorCode::bad_shape,
       [](AppendCase& c) { c.tensors.k_new.shape[0] = 6; }},
      {"k_new must have shape [batch, heads_kv, seq_q, dim_qk] (got [7, 2, 16])", ErrorCode::bad_shape,
       [](AppendCase& c) { c.tensors.cu_seqlens_q = {}; }},
      {"the head dim of k must be 16, as in k_new (got shape [11, 10, 2, 15])", ErrorCode::bad_shape,
       [](AppendCase& c) { c.tensors.k.shape[3] = 15; }},
      {"the page size of v must be 10, as in k (got shape [11, 9, 2, 8])", ErrorCode::bad_shape,
       [](AppendCase& c) { c.tensors.v.shape[1] = 9; }},
      {"k must be bf16, as k_new, or fp8_e4m3 (got fp16)", ErrorCode::bad_dtype,
       [](AppendCase& c) { c.tensors.k.dtype = DType::f16; }},
      {"k_new must be fp32, fp16 or bf16 (got int32)", ErrorCode::bad_dtype,
       [](AppendCase& c) { c.tensors.k_new.dtype = DType::i32; }},
      {"cache_seqlens must be int32 (got fp32)", ErrorCode::bad_dtype,
       [](AppendCase& c) { c.tensors.cache_seqlens.dtype = DType::f32; }},
      {"v must be on cpu, as k_new (got cuda:0)", ErrorCode::bad_device,
       [](AppendCase& c) { c.tensors.v.device = {DeviceKind::cuda, 0}; }},
      {"the last dimension of k_new must have stride 1 (got 2)", ErrorCode::bad_stride,
       [](AppendCase& c) { c.tensors.k_new.stride[2] = 2; }},
      {"an output must not overlap itself (k has stride 0 in dimension 1", ErrorCode::bad_stride,
       [](AppendCase& c) { c.tensors.k.stride[1] = 0; }},
      {"sin must be given: cos and sin come together", ErrorCode::bad_shape, [](AppendCase& c) { c.tensors.sin = {}; }},
      {"cos must be fp32 or bf16, as k_new (got fp16)", ErrorCode::bad_dtype,
       [](AppendCase& c) { c.tensors.cos.dtype = DType::f16; }},
      {"sin must be fp32, as cos (got bf16)", ErrorCode::bad_dtype,
       [](AppendCase& c) { c.tensors.sin.dtype = DType::bf16; }},
      {"cos must have at most 8 columns, half the head dim of k_new (got 9)", ErrorCode::bad_shape,
       [](AppendCase& c) { c.tensors.cos.shape[1] = c.tensors.sin.shape[1] = 9; }},
      {"q requires cos and sin, which rotate it", ErrorCode::bad_value,
       [](AppendCase& c) { c.tensors.cos = c.tensors.sin = {}; }},
      {"q_out must be given", ErrorCode::bad_shape, [](AppendCase& c) { c.tensors.q_out = {}; }},
      {"q_out requires q", ErrorCode::bad_value, [](AppendCase& c) { c.tensors.q = {}; }},
      {"the number of heads of q_out must be 2, as in q (got shape [7, 1, 16])", ErrorCode::bad_shape,
       [](AppendCase& c) { c.tensors.q_out.shape[1] = 1; }},
      {"q_out must not share memory with q", ErrorCode::bad_value,
       [](AppendCase& c) { c.tensors.q_out.data = static_cast<char*>(const_cast<void*>(c.tensors.q.data)) + 2; }},
      {"v must not share memory with k", ErrorCode::bad_value,
       [](AppendCase& c) { c.tensors.v.data = c.tensors.k.data; }},
      {"k must not share memory with k_new", ErrorCode::bad_value,
       [](AppendCase& c) { c.tensors.k_new.data = c.tensors.k.data; }},
      {"cache_seqlens[1] must be 0 to 35 to append 5 tokens to a cache of 40 (got 36)", ErrorCode::bad_value,
       set(&T::cache_seqlens, 1, 36)},
      {"cache_seqlens[0] must be 0 to 38 to append 2 tokens to a cache of 40 (got -1)", ErrorCode::bad_value,
       set(&T::cache_seqlens, 0, -1)},
      {"cache_seqlens[1] must be at most 29 to append 5 tokens with 34 positions of cos and sin (got 30)",
       ErrorCode::bad_value, [](AppendCase& c) { c.tensors.cos.shape[0] = c.tensors.sin.shape[0] = 34; }},
      {"page_table[0, 0] must be a page from 0 to 10 (got -2)", ErrorCode::bad_value, set(&T::page_table, 0, -2)},
      {"page_table[1, 3] must be a page from 0 to 10 (got 11)", ErrorCode::bad_value, set(&T::page_table, 7, 11)},
      {"only one new token may be written to token 3 of page 9 (page_table gives it to sequences 1 and 0)",
       ErrorCode::bad_value,
       [](AppendCase& c) {
         numbers(c.tensors.page_table)[7] = numbers(c.tensors.page_table)[0];
         for (AppendCase::Memory& m : c.memory) m.before = m.bytes;
       }},
      {"sequence 1 must not append to page 0, which holds live keys of sequence 0 (page_table[0, 0]); copy the page",
       ErrorCode::bad_value,
       [](AppendCase& c) {  // 3 keys of sequence 0, which appends to its second page
         numbers(c.tensors.cache_seqlens)[0] = 12;
         numbers(c.tensors.page_table)[7] = numbers(c.tensors.page_table)[0] = 0;
         for (AppendCase::Memory& m : c.memory) m.before = m.bytes;
       }},
      {"cu_seqlens_q[0] must be 0 (got 1)", ErrorCode::bad_value, set(&T::cu_seqlens_q, 0, 1)},
      {"cu_seqlens_q[2] must be at least 2, the entry before it (got 1)", ErrorCode::bad_value,
       set(&T::cu_seqlens_q, 2, 1)},
      {"cu_seqlens_q[2] must be at most 7, the tokens of k_new (got 8)", ErrorCode::bad_value,
       set(&T::cu_seqlens_q, 2, 8)},
  };
  expect_refused(spec, refusals);
}

TEST(Append, RefusesSlotsWithNothingWritten) {
  const AppendSpec spec{.name = "refused slots",
                        .dtype = DType::bf16,
                        .heads_q = 2,
                        .rotary_dim = 12,
                        .used = {0},
                        .lengths = {7},
                        .page_size = 10,
                        .slots = true};
  const auto set = [](auto role, int i, auto to) {
    return [=](AppendCase& c) {
      static_cast<decltype(to)*>(const_cast<void*>((c.tensors.*role).data))[i] = to;
      for (AppendCase::Memory& m : c.memory) m.before = m.bytes;
    };
  };
  using T = AppendTensors;
  const std::int64_t past = 70, twice = 3;
  const std::vector<Refusal> refusals{
      {"slot_mapping[4] must be below 70, the slots of 7 pages of 10 (got 70)", ErrorCode::bad_value,
       set(&T::slot_mapping, 4, past)},
      {"positions[2] must be a row of cos and sin, from 0 to 39 (got -1)", ErrorCode::bad_value,
       set(&T::positions, 2, -1)},  // a token without a slot, whose q is rotated
      {"only one token may be written to slot 3 (slot_mapping gives it to tokens 0 and 6)", ErrorCode::bad_value,
       [=](AppendCase& c) {
         set(&T::slot_mapping, 0, twice)(c);
         set(&T::slot_mapping, 6, twice)(c);
       }},
      {"page_table and slot_mapping must not both be given", ErrorCode::bad_value,
       [](AppendCase& c) { c.tensors.page_table = c.tensors.positions; }},
      {"positions must be given: with slot_mapping it says", ErrorCode::bad_shape,
       [](AppendCase& c) { c.tensors.positions = {}; }},
      {"positions requires cos and sin", ErrorCode::bad_value,
       [](AppendCase& c) { c.tensors.cos = c.tensors.sin = c.tensors.q = {}, c.tensors.q_out = {}; }},
      {"slot_mapping must be int32 or int64 (got fp32)", ErrorCode::bad_dtype,
       [](AppendCase& c) { c.tensors.slot_mapping.dtype = DType::f32; }},
      {"cos_sin_cache and cos or sin must not both be given", ErrorCode::bad_value,
       [](AppendCase& c) { c.tensors.cos_sin_cache = c.tensors.cos; }},
      {"k_new must have shape [total_q, heads_kv, dim_qk] with slot_mapping (got [1, 7, 2, 32])", ErrorCode::bad_shape,
       [](AppendCase& c) { widen(c.tensors.k_new, 4); }},
  };
  expect_refused(spec, refusals);
}

// Many tokens without a slot, and their one entry.
TEST(Append, RepeatedSlotsAreReadOnce) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  const std::int64_t none = -1, first = 0;
  const float row = 0;
  std::vector<float> cache(8, 7.0f);
  AppendTensors t;
  t.k_new = t.v_new = {&row, DType::f32, {kMany, 0, 4}, {0, 0, 1}};
  t.k = t.v = {cache.data(), DType::f32, {2, 1, 0, 4}};
  t.slot_mapping = {&none, DType::i64, {kMany}, {0}};
  append_kv(t);
  t.slot_mapping.data = &first;
  EXPECT_THROW(append_kv(t), Error);
  EXPECT_EQ(cache, std::vector<float>(8, 7.0f));
}

TEST(Append, AnFp8QuotientSaturates) {
  for (const float factor : {0.0f, 1e-39f, 1e-30f}) {
    EXPECT_EQ(to_float(divided(2.0f, factor)), 448.0f) << factor;
    EXPECT_EQ(to_float(divided(-2.0f, factor)), -448.0f) << factor;
    EXPECT_EQ(to_float(divided(0.0f, factor)), 0.0f) << factor;
    for (const float x : {std::numeric_limits<float>::infinity(), std::nanf("")})
      EXPECT_TRUE(std::isnan(to_float(divided(x, factor)))) << factor;
  }
  EXPECT_EQ(to_float(divided(3.0f, 2.0f)), 1.5f);
  AppendCase c({.name = "saturates", .heads_kv = 1, .dim_qk = 4, .dim_v = 4, .used = {0}, .lengths = {1}, .fp8 = true});
  const_cast<float*>(static_cast<const float*>(c.tensors.k_descale.data))[0] = 0.0f;
  append_kv(c.tensors);
  for (int d = 0; d < 4; ++d) {
    const float y = load_element(c.tensors.k.data, DType::f8e4m3, d);
    EXPECT_TRUE(std::abs(y) == 448.0f || y == 0.0f) << y;
  }
}

// A page may be in several tables, and entries that no new token lies in may be anything.
TEST(Append, ReadsOnlyTheEntriesThatItWritesTo) {
  AppendCase c({.name = "shared", .used = {10, 12}, .lengths = {3, 3}, .page_size = 8});
  std::int32_t* table = numbers(c.tensors.page_table);
  table[0] = table[5] = -7;       // of used keys
  table[3] = table[9] = 1 << 30;  // behind the last
  for (AppendCase::Memory& m : c.memory) m.before = m.bytes;
  append_kv(c.tensors);
  c.expect_right();
}

}  // namespace
}  // namespace onepass::check
