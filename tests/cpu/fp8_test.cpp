// fp8_e4m3 on the CPU: every kernel against the same numbers in fp32, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "check/check.hpp"
#include "check/draw/random.hpp"
#include "onepass/quantize.hpp"
#include "plan/implementations.hpp"
#include "plan/plan.hpp"
#include "problem/attention/fp8.hpp"
#include "problem/attention/key_value_view.hpp"
#include "reference/reference.hpp"
#include "support/cpu_kernels.hpp"
#include "support/sentence.hpp"

namespace onepass::check {
namespace {

// The same call on fp32 copies of its dequantised q, k and v.
std::vector<float> in_fp32(const Inputs& in) {
  const Problem& p = in.problem;
  const auto dequantised = [&](const ConstTensor& t, const ConstTensor& descale, const ConstTensor& mean,
                               std::int64_t heads, auto sequence_of, std::vector<float>& numbers) {
    const std::int64_t dim = t.shape[t.rank - 1];
    numbers.assign(static_cast<std::size_t>(t.elements()), 0);
    ConstTensor same(numbers.data(), DType::f32, {0});
    same.rank = t.rank, same.shape = t.shape;
    std::int64_t step = 1;
    for (int i = t.rank - 1; i >= 0; step *= t.shape[i--]) same.stride[i] = step;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const auto [seq, rows] = sequence_of(b);
      const KeyValueView from(t, seq, descale, mean), to(same, seq);
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t j = 0; j < rows; ++j)
          for (std::int64_t d = 0; d < dim; ++d) const_cast<float*>(to.row<float>(h, j))[d] = from.element(h, j, d);
    }
    return same;
  };
  const auto keys = [&](std::int64_t b) {
    const Sequence s = sequence_of(p, in.tensors, b);
    return std::pair(s, s.seq_k);
  };
  const auto queries = [&](std::int64_t b) {
    const Sequence s = sequence_of(p, in.tensors, b);
    return std::pair(Sequence{b, 0, s.q_begin, 0, 0}, s.seq_q);
  };
  std::vector<float> q, k, v, out(static_cast<std::size_t>(in.tensors.out.elements()));
  Tensors t = in.tensors;
  t.q = dequantised(in.tensors.q, in.tensors.q_descale, {}, p.heads_q, queries, q);
  t.k = dequantised(in.tensors.k, in.tensors.k_descale, {}, p.heads_kv, keys, k);
  t.v = dequantised(in.tensors.v, in.tensors.v_descale, in.tensors.v_mean, p.heads_kv, keys, v);
  t.q_descale = t.k_descale = t.v_descale = t.v_mean = {};
  t.out.data = out.data();
  t.out.dtype = DType::f32;
  std::int64_t step = 1;
  for (int i = t.out.rank - 1; i >= 0; step *= t.out.shape[i--]) t.out.stride[i] = step;
  Attention a = in.attention;
  a.accumulation = Accumulation::exact;
  onepass::attention(t, a, {}, "reference");
  return out;
}

class Fp8 : public testing::TestWithParam<const char*> {};

TEST_P(Fp8, IsTheSameNumbersInFp32) {
  int compared = 0;
  for (const std::uint64_t seed : {1, 2}) {
    Inputs in = make_inputs(parse_problem(GetParam()), seed);
    const std::vector<float> expected = in_fp32(in);
    for (const Implementation* row : plan::implementations()) {
      if (reference::is_reference(*row) || std::string_view(row->name).starts_with("cpu.amx"))
        continue;  // AMX rounds weights to bf16
      if (!run_on(*row, in, serial_executor())) continue;
      EXPECT_EQ(in.touched(), "") << row->name;
      ++compared;
      const Tensor& t = in.tensors.out;
      for (std::int64_t i = 0; i < t.elements(); ++i) {
        std::int64_t at = 0, rest = i;
        for (int d = t.rank - 1; d >= 0; rest /= t.shape[d--]) at += rest % t.shape[d] * t.stride[d];
        const float x = load_element(t.data, t.dtype, at), y = expected[static_cast<std::size_t>(i)];
        if (in.problem.varlen && std::isnan(x)) continue;  // tokens of no sequence
        ASSERT_NEAR(x, y, 3e-5 * (1 + std::abs(y))) << row->name << ", element " << i;
      }
    }
  }
  EXPECT_GE(compared, 2);
}

TEST_P(Fp8, IsRightByTheRule) {
  for (const Distribution distribution : kDistributions) {
    Inputs in = make_inputs(parse_problem(GetParam()), 3, distribution);
    test::expect_all_right(plan::implementations(), in, name_of(distribution));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Problems, Fp8,
    testing::Values(
        "fwd b2 h4/2 s140x300 d64 fp8_e4m3 out=fp32 q_descale=bhn k_descale=bhn v_descale=bhn",
        "fwd b2 h4/2 s3x300 d40/72 fp8_e4m3 out=fp32 q_descale=bh1 k_descale=1h1 v_descale=b1n v_mean=b1d",
        "fwd h2/1 d128 fp8_e4m3 out=fp32 varlen=1,100,0,133/70,130,7,300 k_descale=bhn v_descale=bhn",
        "fwd b2 h4/2 s2x200 d64 fp32 kv_dtype=fp8_e4m3 k_descale=111 v_descale=1h1 causal_bottom_right v_mean=bhd",
        "fwd b3 h8/2 s1x200 d64 fp32 kv_dtype=fp8_e4m3 kv=paged:16 seqused=200,17,0 k_descale=bhn "
        "v_descale=bhn",
        "fwd b2 h2 s70x90 d33/17 fp32 kv_dtype=fp8_e4m3 softcap=20 sinks mask=b11k v_descale=1hn v_mean=1h1"));

// Attention on numbers that are quantized for it: near the exact result, and with V's mean not lost.
TEST(Fp8, QuantizedForACall) {
  constexpr std::int64_t kHeads = 2, kRows = 300, kKeys = 400, kDim = 64;
  Random random(7, {});
  std::vector<float> q(kHeads * kRows * kDim), k(kHeads * kKeys * kDim), v(k.size()), out(q.size()), exact(q.size());
  for (float& x : q) x = random.normal();
  for (float& x : k) x = random.normal() * (random.below(1000) == 0 ? 30.0f : 1.0f);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 100 + static_cast<float>(i % kDim) + random.normal();
  std::vector<std::int32_t> cu_q{0, 100, 300}, cu_k{0, 150, 400};
  const auto error_of = [&](const Tensors& t, const Fp8Options& options) {
    onepass::attention_fp8(t, {.band = {.causal = true}}, options);
    Tensors plain = t;
    plain.out.data = exact.data();
    onepass::attention(plain, {.band = {.causal = true}});
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += std::pow(double{out[i]} - double{exact[i]}, 2);
    return std::sqrt(sum / static_cast<double>(out.size()));
  };
  const AttentionTensors batched{.q = {q.data(), DType::f32, {1, kHeads, kRows, kDim}},
                                 .k = {k.data(), DType::f32, {1, kHeads, kKeys, kDim}},
                                 .v = {v.data(), DType::f32, {1, kHeads, kKeys, kDim}},
                                 .out = {out.data(), DType::f32, {1, kHeads, kRows, kDim}}};
  AttentionTensors packed{.q = {q.data(), DType::f32, {kRows, kHeads, kDim}},
                          .k = {k.data(), DType::f32, {kKeys, kHeads, kDim}},
                          .v = {v.data(), DType::f32, {kKeys, kHeads, kDim}},
                          .out = {out.data(), DType::f32, {kRows, kHeads, kDim}}};
  packed.cu_seqlens_q = {cu_q.data(), DType::i32, {3}}, packed.cu_seqlens_k = {cu_k.data(), DType::i32, {3}};
  for (const AttentionTensors& t : {batched, packed}) {
    const double centered = error_of(t, {.center = true});
    EXPECT_LT(centered, 0.04);
    EXPECT_LT(error_of(t, {.by_block = true, .center = true}), 0.04);
    EXPECT_GT(error_of(t, {}), 0.1);  // numbers of 160 to 4 digits
    EXPECT_GT(error_of(t, {.hadamard = false, .center = true}), 1.05 * centered);
  }
  const std::string said = explain(batched, {}, {.center = true});
  EXPECT_EQ(said.find("fwd b1 h2 s300x400 d64 fp32 fp8=hadamard,center\n"), 0u) << said;
  EXPECT_NE(said.find("\n* cpu.quantize+"), said.npos) << said;
  EXPECT_NE(
      said.find("q: reads each block of 128 rows once; k: reads each head for its amax, then each block of 128 rows; "
                "v: reads each head for its mean and amax, then each block of 128 rows; then "),
      said.npos)
      << said;
  const Problem problem = parse_problem("fwd b2 h4/2 s300x400 d72/64 bf16 fp8=hadamard,center,by_block");
  const Fp8Problems parts = fp8_problems(problem);
  for (const auto& [part, line] :
       {std::pair{&parts.quantizes[0], "quantize b2 h4 s300x72 bf16 descale=bhn hadamard y_strides=96000,24000,80,1"},
        {&parts.quantizes[1], "quantize b2 h2 s400x72 bf16 descale=bhn hadamard y_strides=64000,32000,80,1"},
        {&parts.quantizes[2], "quantize b2 h2 s400x64 bf16 descale=bhn mean"},
        {&parts.attention,
         "fwd b2 h4/2 s300x400 d72/64 fp8_e4m3 q_descale=bhn k_descale=bhn v_descale=bhn v_mean=bhd "
         "strides=q:96000,24000,80;k:64000,32000,80;v:51200,25600,64;o:76800,19200,64"}}) {
    EXPECT_NO_THROW(validate(*part));
    EXPECT_EQ(to_string(*part), line);
  }
  Tensors wrong = batched;
  wrong.v_descale = {exact.data(), DType::f32, {1}};
  EXPECT_EQ(test::sentence_of([&] { onepass::attention_fp8(wrong); }),
            "attention_fp8 does not support v_descale; it computes the scales and means");
}

// The values between e4m3's subnormals and its largest, through both kernels' loads.
TEST(Fp8, EveryValueOfKAndV) {
  constexpr int kKeys = 256, kDim = 16;
  std::vector<f8e4m3> k(kKeys * kDim), v(kKeys * kDim);
  for (int j = 0; j < kKeys; ++j)
    for (int d = 0; d < kDim; ++d) v[j * kDim + d].bits = static_cast<std::uint8_t>(j == 127 || j == 255 ? 0 : j);
  std::vector<float> q(kKeys * kDim, 0), out(kKeys * kDim);
  std::vector<std::uint8_t> mask(kKeys * kKeys, 0);
  for (int j = 0; j < kKeys; ++j) mask[j * kKeys + j] = 1;  // row j sees key j and returns it
  for (const std::int64_t rows : {std::int64_t{2}, std::int64_t{kKeys}}) {
    AttentionTensors t{.q = {q.data(), DType::f32, {1, 1, rows, kDim}},
                       .k = {k.data(), DType::f8e4m3, {1, 1, kKeys, kDim}},
                       .v = {v.data(), DType::f8e4m3, {1, 1, kKeys, kDim}},
                       .out = {out.data(), DType::f32, {1, 1, rows, kDim}}};
    for (std::int64_t first = 0; first < kKeys; first += rows) {
      t.bool_mask = {mask.data() + first * kKeys, DType::boolean, {1, 1, rows, kKeys}};
      onepass::attention(t);
      for (std::int64_t i = 0; i < rows; ++i)
        ASSERT_EQ(out[i * kDim + 3], to_float(v[(first + i) * kDim])) << "of " << rows << ": " << first + i;
    }
  }
}

}  // namespace
}  // namespace onepass::check
