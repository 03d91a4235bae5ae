// The AMX backend against the oracle: on emulated tiles everywhere, on the CPU's own where it has them.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/check.hpp"
#include "cpu/amx/amx.hpp"
#include "cpu/amx/flat_gemm.hpp"
#include "cpu/amx_emulated.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

std::vector<Implementation> backends() {
  std::vector<Implementation> all = {cpu::amx::emulated()};
  if (cpu::amx::missing_hardware().empty()) all.push_back(cpu::amx::implementations()[0]);
  return all;
}

class Amx : public testing::TestWithParam<std::string> {};

TEST_P(Amx, IsRightByTheRule) {
  const Problem problem = parse_problem(GetParam());
  for (const Implementation& backend : backends()) {
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      for (const check::Distribution distribution : check::kDistributions) {
        // A dot product of 3e4 that is all a row sees is off by more than the rule lets its LSE be, in any order of
        // fp32 sums.
        if (problem.varlen && distribution == check::Distribution::huge) continue;
        check::Inputs inputs = check::make_inputs(problem, seed, distribution, check::Placement::page_end);
        const check::Verdict verdict = check::check(backend, inputs);
        ASSERT_TRUE(verdict.accepted && verdict.right)
            << backend.name << ", " << GetParam() << ", " << check::name_of(distribution) << ": " << verdict.sentence;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Amx,
    testing::Values("fwd b1 h1 s128 d64 bf16 lse", "fwd b2 h3 s65x300 d64 bf16 lse", "fwd b1 h2 s1x203 d128 bf16 lse",
                    "fwd b1 h8/2 s33x257 d128 bf16 causal_bottom_right lse",
                    "fwd b1 h2 s200 d72 bf16 causal_top_left lse", "fwd b1 h2 s203x65 d40 bf16 causal_bottom_right lse",
                    "fwd b1 h1 s65x203 d8 bf16 causal_top_left lse", "fwd b1 h4/1 s17x129 d192/128 bf16 lse",
                    "fwd b1 h2/1 s40x150 d576/512 bf16 causal_bottom_right lse", "fwd b1 h2/1 s40x150 d512 bf16 lse",
                    "fwd b1 h2 s17x129 d300/450 bf16 causal_bottom_right lse",
                    "fwd b1 h2 s300 d64 bf16 causal_bottom_right window=70:0 lse",
                    "fwd b1 h2 s300 d32 bf16 window=40:90 lse", "fwd b1 h2 s0x10 d64 bf16 lse",
                    "fwd b1 h2 s10x0 d64 bf16 lse", "fwd b0 h2 s10 d64 bf16 lse",
                    "fwd b2 h4/2 s129 d64 bf16 layout=bshd lse", "fwd b1 h1 s65x113 d1 bf16 lse",
                    "fwd b1 h2 s64x513 d256 bf16 lse", "fwd b1 h1 s600x600 d16 bf16 causal_top_left lse",
                    "fwd b1 h2 s100x260 d59/111 bf16 out=fp32 lse", "fwd b1 h1 s70x140 d64 bf16 scale=-0.3 lse",
                    "fwd b1 h1 s70x140 d64 bf16 scale=0 lse", "fwd b2 h16/1 s9x200 d80 bf16 causal_bottom_right lse",
                    "fwd b4 h4/2 d64 bf16 varlen=3,0,200,64/130,7,200,0 causal_bottom_right lse",
                    "fwd b3 h2 d128 bf16 varlen=100,1,255/33,300,255 window=64:64 lse"));

INSTANTIATE_TEST_SUITE_P(
    Features, Amx,
    testing::Values(
        "fwd b1 h2 s65x203 d64 bf16 softcap=30 lse", "fwd b2 h2 s100x140 d64 bf16 bias=fp32:bhqk lse",
        "fwd b2 h4/2 s70x200 d64 bf16 bias=bf16:1hqk causal_bottom_right lse",
        "fwd b2 h4/2 s70x200 d64 bf16 bias=fp16:b11k lse", "fwd b1 h2 s40x65 d64 bf16 bias=fp16:11q1 lse",
        "fwd b2 h2 s100x300 d64 bf16 mask=b1qk lse", "fwd b1 h4/1 s65x130 d64 bf16 mask=1h1k causal_top_left lse",
        "fwd b2 h8/2 s65x203 d64 bf16 alibi causal_bottom_right lse", "fwd b1 h4 s65x203 d64 bf16 sinks lse",
        "fwd b1 h2 s65x203 d64 bf16 sinks causal_bottom_right window=30:0 mask=11qk lse",
        "fwd b2 h4/2 s65x203 d64 bf16 dropout=0.3 seed=7 dropout_start=1:3:70:260 lse",
        "fwd b1 h2 s65x203 d64 bf16 dropout=1 lse",
        "fwd b2 h4/2 s65x203 d72/40 bf16 softcap=20 bias=bf16:bhqk mask=bhqk alibi sinks dropout=0.2 seed=3 "
        "causal_bottom_right window=150:0 lse",
        "fwd b3 h2 d64 bf16 varlen=100,1,255/33,300,255 alibi dropout=0.5 mask=bhqk lse"));

INSTANTIATE_TEST_SUITE_P(
    Masks, Amx,
    testing::Values(
        "fwd b2 h4/2 s70x133 d40 bf16 lse row_max mask_mod={k_index <= q_index + 63 && (k_index + head) % 3 != batch}",
        "fwd b2 h4/2 s133 d40/48 bf16 causal_bottom_right lse mask_mod={doc(batch, q_index) == doc(batch, k_index) || "
        "seen[k_index]} buffer=doc:int32:2x133 buffer=seen:bool:133",
        "fwd b2 h6/2 s65x140 d48/80 bf16 out=fp32 causal_bottom_right window=90:-1 softcap=20 bias=fp16:bhqk mask=b1qk "
        "alibi sinks dropout=0.25 seed=7 layout=bshd lse row_max mask_mod={((q_index ^ k_index) & 5) != 0}",
        "fwd h2 s40x3000 d64 bf16 lse mask_mod={k_index < 64 || k_index % 16 == q_index % 16 || k_index >= 2990}",
        "fwd h4/2 s300x700 d32 bf16 lse mask_mod={q_index / 64 == k_index / 64 && q_index != 7} sinks",
        "fwd h2 s200x600 d64 bf16 lse mask_mod={k_index / 32 % 4 != 1 && sin(1.0f * (k_index + q_index)) < 0.5f}",
        "fwd h4/1 d64 bf16 varlen=300,1,0,200/400,7,5,600 lse mask_mod={k_index < 96 || q_index - k_index < 64}",
        "fwd b2 h4/2 s70x3000 d64 bf16 batch_invariant lse mask_mod={k_index / 500 % 3 != 1 && k_index < q_index * 60}",
        "fwd b2 h4/2 s3x5000 d64 bf16 batch_invariant lse row_max sinks mask_mod={k_index / 500 % 3 != 1 && k_index > "
        "q_index * 1500 && q_index != 1}",
        "fwd b2 h2 s5x5000 d64 bf16 batch_invariant lse mask_mod={false}",
        "fwd b2 h4/2 s65x203 d64 fp8_e4m3 q_descale=bh1 lse mask_mod={k_index < q_index * 2}",
        "fwd b2 h4/2 s200x600 d40/48 bf16 lse block_mask=b1qk mask_tile_q=64 mask_tile_k=96 sinks",
        "fwd b2 h2 s300x400 d64 bf16 lse block_mask=1h1k mask_mod={doc(0, q_index) == doc(0, k_index)} "
        "buffer=doc:int32:1x400"));

INSTANTIATE_TEST_SUITE_P(
    Entropies, Amx,
    testing::Values(
        "fwd b2 h4/2 s70x133 d64 bf16 lse entropy", "fwd b1 h2 s200x700 d40/48 bf16 causal_bottom_right sinks entropy",
        "fwd b2 h4/2 s65x203 d64 bf16 softcap=20 bias=bf16:bhqk mask=b1qk alibi dropout=0.3 seed=7 row_max entropy",
        "fwd b1 h2 s100x260 d59/111 bf16 out=fp32 window=90:10 lse entropy",
        "fwd h4/2 d64 bf16 varlen=100,1,255/33,300,255 causal_bottom_right lse row_max entropy",
        "fwd b2 h4/2 s70x3000 d64 bf16 batch_invariant sinks lse entropy",
        "fwd b2 h4/2 s3x5000 d64 bf16 batch_invariant causal_bottom_right lse row_max entropy",
        "fwd b2 h2 s5x2000 d64 bf16 batch_invariant entropy mask_mod={k_index / 500 % 3 != 1 && q_index != 2}",
        "fwd b2 h4/2 s65x203 d64 fp8_e4m3 q_descale=bh1 k_descale=bh1 lse entropy"));

INSTANTIATE_TEST_SUITE_P(
    E4m3, Amx,
    testing::Values("fwd b2 h4/2 s65x203 d64 fp8_e4m3 q_descale=bh1 k_descale=bh1 v_descale=1h1 lse",
                    "fwd b1 h4/2 s140x300 d72/40 fp8_e4m3 q_descale=bhn k_descale=bhn v_descale=bhn "
                    "causal_bottom_right layout=bshd out=fp32 lse",
                    "fwd h4/2 d64 fp8_e4m3 varlen=3,0,200/130,7,260 q_descale=bhn k_descale=1h1 v_descale=bhn lse",
                    "fwd b2 h4/2 s40x150 d64 bf16 kv_dtype=fp8_e4m3 k_descale=bhn v_descale=111 seqused=150,17 "
                    "causal_bottom_right lse",
                    "fwd b2 h4/2 s140x330 d128 fp8_e4m3 q_descale=1h1 softcap=20 sinks mask=b1qk window=200:9 lse",
                    "fwd b1 h2 s100x260 d59/111 fp8_e4m3 k_descale=1hn scale=-0.3 alibi dropout=0.2 seed=3 lse",
                    "fwd b2 h2 s0x5 d64 fp8_e4m3 q_descale=bhn lse", "fwd b1 h2 s5x0 d64 fp8_e4m3 k_descale=bhn lse"));

TEST(AmxNotANumber, ReachesOnlyTheRowsThatSeeIt) {
  for (const Implementation& backend : backends()) {
    for (const char* line :
         {"fwd b1 h2 s200 d64 bf16 causal_top_left lse", "fwd b1 h2 s100x200 d64 bf16 window=20:20 mask=11qk lse",
          "fwd b1 h2 s200 d64 bf16 dropout=0.3 sinks lse"}) {
      for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        for (const bool in_v : {false, true}) {
          check::Inputs inputs = check::make_inputs(parse_problem(line));
          const ConstTensor& t = in_v ? inputs.tensors.v : inputs.tensors.k;
          store_element(check::Inputs::writable<void>(t), t.dtype, row_offset(t, 0, 1, 137) + 5, poison);
          inputs.changed();
          const check::Verdict verdict = check::check(backend, inputs);
          EXPECT_TRUE(verdict.right) << backend.name << ", " << line << ", " << poison << ": " << verdict.sentence;
        }
      }
    }
  }
}

class AmxNonfinite : public testing::TestWithParam<test::Poke> {};

TEST_P(AmxNonfinite, ReachesTheRowsThatSeeIt) {
  for (const Implementation& backend : backends()) {
    for (const char* line :
         {"fwd b1 h4/2 s70x100 d40 bf16 lse", "fwd b1 h4/2 s100x300 d64/72 bf16 causal_bottom_right out=fp32 lse",
          "fwd b1 h4/2 s70x300 d64 bf16 window=150:3 mask=11qk dropout=0.5 lse",
          "fwd b1 h4/2 s40x140 d64 bf16 kv=paged:32 seqused=139 softcap=30 sinks scale=-0.3 lse"}) {
      for (const check::Distribution distribution : {check::Distribution::normal, check::Distribution::huge}) {
        check::Inputs inputs = check::make_inputs(parse_problem(line), 2, distribution);
        GetParam().poke(inputs);
        inputs.changed();
        const check::Verdict verdict = check::check(backend, inputs);
        EXPECT_TRUE(verdict.right) << backend.name << ", " << line << ", " << check::name_of(distribution) << ": "
                                   << verdict.sentence;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(One, AmxNonfinite, testing::ValuesIn(test::kPokes),
                         [](const auto& poke) { return poke.param.name; });
INSTANTIATE_TEST_SUITE_P(Many, AmxNonfinite, testing::ValuesIn(test::kManyPokes),
                         [](const auto& poke) { return poke.param.name; });

// Sums of finite values overflow before they are divided by the weights' sum: these rows are computed again.
TEST(AmxOverflow, OfSumsLeavesFiniteResults) {
  for (const Implementation& backend : backends()) {
    check::Inputs inputs = check::make_inputs(parse_problem("fwd b1 h2 s70x100 d40 bf16 causal_bottom_right lse"));
    for (std::int64_t key = 0; key < 100; ++key)
      for (std::int64_t d = 0; d < 40; ++d) test::set(inputs.tensors.v, 1, key, d, 3e38f);
    inputs.changed();
    const check::Verdict verdict = check::check(backend, inputs);
    EXPECT_TRUE(verdict.right) << backend.name << ": " << verdict.sentence;
  }
}

TEST(AmxOverflow, IsFoundUnderAMaskMod) {
  for (const Implementation& backend : backends()) {
    check::Inputs inputs = check::make_inputs(
        parse_problem("fwd b1 h2 s70x1000 d40 bf16 lse mask_mod={k_index % 300 < q_index && k_index != 700}"));
    for (std::int64_t key = 0; key < 1000; ++key)
      for (std::int64_t d = 0; d < 40; ++d)
        test::set(inputs.tensors.v, 1, key, d, key == 700 || key % 300 >= 69 ? NAN : 3e38f);
    inputs.changed();
    const check::Verdict verdict = check::check(backend, inputs);
    EXPECT_TRUE(verdict.accepted && verdict.right) << backend.name << ": " << verdict.sentence;
  }
}

// With batch_invariant, whatever the rows beside it see.
TEST(AmxMaskMod, LeavesARowItsBits) {
  const auto line = [](std::int64_t rows) {
    return text("fwd b1 h2 s", rows, "x5000 d64 bf16 batch_invariant lse mask_mod={(k_index / 40 + off[q_index]) % 7 ",
                "< 2} buffer=off:int32:", rows);
  };
  for (const Implementation& backend : backends()) {
    check::Inputs all = check::make_inputs(parse_problem(line(150)));
    std::vector<std::int32_t> off(150);
    for (std::size_t i = 0; i < off.size(); ++i) off[i] = static_cast<std::int32_t>(i * i % 11);
    all.tensors.mod_buffers[0].tensor = ConstTensor(off.data(), DType::i32, {150});
    ASSERT_TRUE(check::run_on(backend, all, serial_executor()));
    const auto bits = [](const Tensor& out, std::int64_t head, std::int64_t row) {
      const auto* const x = static_cast<const std::uint16_t*>(out.data) + head * out.stride[1] + row * out.stride[2];
      return std::vector<std::uint16_t>(x, x + 64);
    };
    for (const auto& [first, rows] : {std::pair<std::int64_t, std::int64_t>{7, 1}, {33, 3}, {50, 90}}) {
      check::Inputs some = check::make_inputs(parse_problem(line(rows)));
      some.tensors.k = all.tensors.k, some.tensors.v = all.tensors.v;
      some.tensors.mod_buffers[0].tensor = ConstTensor(off.data() + first, DType::i32, {rows});
      for (std::int64_t head = 0; head < 2; ++head)
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t d = 0; d < 64; ++d)
            test::set(some.tensors.q, head, r, d,
                      load_element(all.tensors.q.data, DType::bf16, row_offset(all.tensors.q, 0, head, first + r) + d));
      ASSERT_TRUE(check::run_on(backend, some, serial_executor()));
      for (std::int64_t head = 0; head < 2; ++head)
        for (std::int64_t r = 0; r < rows; ++r)
          EXPECT_EQ(bits(some.tensors.out, head, r), bits(all.tensors.out, head, first + r)) << backend.name << r;
    }
  }
}

TEST(AmxThreads, DoNotChangeABit) {
  const auto bytes_of = [](const Implementation& backend, const char* line, int threads) {
    check::Inputs inputs = check::make_inputs(parse_problem(line));
    const std::shared_ptr<Executor> executor = make_executor(threads);
    EXPECT_TRUE(check::run_on(backend, inputs, *executor));
    const Tensor& out = inputs.tensors.out;
    const auto* p = static_cast<const std::uint16_t*>(out.data);
    return std::vector<std::uint16_t>(p, p + out.elements());
  };
  for (const Implementation& backend : backends()) {
    for (const char* line : {"fwd b3 h8/2 s300 d64 bf16 causal_bottom_right", "fwd b1 h2 s700 d128 bf16"}) {
      const auto one = bytes_of(backend, line, 1);
      for (const int threads : {2, 3, 7})
        EXPECT_EQ(one, bytes_of(backend, line, threads)) << backend.name << ", " << line;
    }
  }
}

std::vector<Implementation> gemm_backends() {
  std::vector<Implementation> all = {cpu::amx::emulated_flat_gemm()};
  if (cpu::amx::missing_hardware().empty()) all.push_back(cpu::amx::flat_gemm_implementations()[0]);
  return all;
}

TEST(AmxFlatGemm, IsRightByTheRule) {
  for (const char* line :
       {"flat_gemm m1 n32 k64 bf16", "flat_gemm m5 n70 k129 bf16 column_bias", "flat_gemm m17 n31 k33 bf16 out=fp32",
        "flat_gemm m33 n64 k1000 bf16 column_bias", "flat_gemm m2 n1 k1 bf16", "flat_gemm m3 n5 k0 bf16 column_bias",
        "flat_gemm m0 n5 k7 bf16", "flat_gemm m3 n0 k7 bf16",
        "flat_gemm m4 n100 k70 bf16 x_strides=80,1 w_strides=90,1 y_strides=2,20 column_bias column_bias_strides=3"}) {
    for (const Implementation& backend : gemm_backends()) {
      for (const check::Distribution distribution : check::kDistributions) {
        check::Inputs inputs = check::make_inputs(parse_problem(line), 2, distribution, check::Placement::page_end);
        const check::Verdict verdict = check::check(backend, inputs);
        ASSERT_TRUE(verdict.accepted && verdict.right)
            << backend.name << ", " << line << ", " << check::name_of(distribution) << ": " << verdict.sentence;
      }
    }
  }
}

TEST(AmxFlatGemm, NanAndInfinityReachTheirRowsAndColumns) {
  for (const char* line : {"flat_gemm m5 n70 k131 bf16 column_bias", "flat_gemm m36 n64 k64 bf16"}) {
    for (const Implementation& backend : gemm_backends()) {
      check::Inputs inputs = check::make_inputs(parse_problem(line), 3, check::Distribution::normal);
      test::poke_gemm(inputs);
      const check::Verdict verdict = check::check(backend, inputs);
      EXPECT_TRUE(verdict.right) << backend.name << ", " << line << ": " << verdict.sentence;
    }
  }
}

TEST(AmxFlatGemm, GivesTheSameBitsForAnyThreads) {
  for (const Implementation& backend : gemm_backends()) {
    const auto bytes = [&](int threads) {
      check::Inputs inputs = check::make_inputs(parse_problem("flat_gemm m40 n300 k200 bf16"));
      EXPECT_TRUE(check::run_on(backend, inputs, *make_executor(threads)));
      const auto* p = static_cast<const std::uint16_t*>(inputs.tensors.y.data);
      return std::vector<std::uint16_t>(p, p + inputs.tensors.y.elements());
    };
    for (const int threads : {2, 5}) EXPECT_EQ(bytes(1), bytes(threads)) << backend.name;
  }
}

TEST(AmxRefuses, InASentence) {
  EXPECT_EQ(cpu::amx::refuses_gemm(parse_problem("flat_gemm m1 n8 k8 fp16")),
            "requires x and w in bf16 (got fp16), because tiles multiply bf16");
  EXPECT_EQ(cpu::amx::refuses_gemm(parse_problem("flat_gemm m4 n8 k8 bf16 x_strides=1,4")),
            "requires x and w with unit stride in their last dimension");
  EXPECT_EQ(cpu::amx::refuses(parse_problem("fwd b1 h1 s8 d64 bf16")), "");
  EXPECT_EQ(cpu::amx::refuses(parse_problem("fwd b1 h1 s8 d64 bf16 mask_mod={true}")), "");
  EXPECT_EQ(cpu::amx::refuses(parse_problem("fwd b1 h1 s8 d64 bf16 score_mod={score}")), "does not support score_mod");
  EXPECT_NE(cpu::amx::refuses(parse_problem("fwd b1 h1 s8 d64 fp16")).find("fp16"), std::string::npos);
  EXPECT_EQ(cpu::amx::refuses(parse_problem("fwd b1 h1 s8x99999999 d64 bf16")),
            "seq_k must be at most 33554432 (got 99999999): the packed K and V take at most 8 GiB");
}

}  // namespace
}  // namespace onepass
