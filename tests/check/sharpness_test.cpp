// From which size on the rule rejects small mistakes, and that it accepts right results of any size.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.hpp"
#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "reference/textbook.hpp"

namespace onepass::check {
namespace {

// Everything in float64 but the weights, which are stored in bf16.
struct Bf16Weights : reference::Exact {
  template <class T>
  T weight(T w, T l) const {
    return static_cast<T>(to_float(from_float<bf16>(static_cast<float>(w / l))));
  }
};

void store(Inputs& in, const std::vector<double>& out, double factor = 1) {
  const Problem& p = in.problem;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence_of(p, in.tensors, b);
    for (std::int64_t h = 0; h < p.heads_q; ++h)
      for (std::int64_t i = 0; i < seq.seq_q; ++i)
        for (std::int64_t d = 0; d < p.dim_v; ++d)
          store_element(in.tensors.out.data, p.out_dtype, row_offset(in.tensors.out, b, h, i) + d,
                        static_cast<float>(factor * out[reference::dense_out_index(p, seq, h, i) + d]));
  }
}

struct Mistake {
  const char* name;
  void (*make)(Inputs&);
};
const Mistake kRight{"Right", [](Inputs& in) { store(in, in.oracle(serial_executor()).out); }};
const Mistake kScaled{"ScaledBy1002", [](Inputs& in) { store(in, in.oracle(serial_executor()).out, 1.002); }};
const Mistake kBf16Weights{"Bf16Weights", [](Inputs& in) {
                             store(in, reference::textbook<double>(in.problem, in.tensors, Bf16Weights{}).out);
                           }};
// Products of tf32 whose operands are cut off after 11 bits, not rounded.
const Mistake kCutOperands{"CutOperands", [](Inputs& in) {
                             for (const ConstTensor* t : {&in.tensors.q, &in.tensors.k, &in.tensors.v}) {
                               auto* const x = Inputs::writable<std::uint32_t>(*t);
                               for (std::int64_t i = 0; i < t->elements(); ++i) x[i] &= 0xffffe000u;
                             }
                             Problem p = in.problem;
                             p.precision = Precision::fp32;
                             store(in, reference::textbook<double>(p, in.tensors, reference::Exact{}).out);
                           }};
const Mistake kFp32{"Fp32",
                    [](Inputs& in) { store(in, in.exact().oracle(serial_executor()).out); }};  // right with tf32
const Mistake kDroppedKey{"DroppedKey", [](Inputs& in) {
                            Problem p = in.problem;
                            Tensors t = in.tensors;
                            --p.seq_k, --t.k.shape[2], --t.v.shape[2];
                            store(in, reference::textbook<double>(p, t, reference::Exact{}).out);
                          }};

struct Size {
  const char* line;
  std::vector<const Mistake*> rejected;  // with every seed
};
// fp32 shows every mistake at every size; a dropped key shows where some row gives it weight. Where the base stores
// scores in 16 bits it errs by 2^-12 (fp16) or 2^-9 (bf16) of a score, which hides smaller mistakes.
const Size kSizes[] = {
    {"b1 h1 s1x2 d1 fp32", {&kScaled, &kBf16Weights, &kDroppedKey}},
    {"b1 h1 s3x5 d1 fp32", {&kScaled, &kBf16Weights, &kDroppedKey}},
    {"b1 h1 s4x8 d8 fp32", {&kScaled, &kBf16Weights, &kDroppedKey}},
    {"b1 h1 s16 d16 fp32", {&kScaled, &kBf16Weights, &kDroppedKey}},
    {"b1 h1 s64 d64 fp32", {&kScaled, &kBf16Weights, &kDroppedKey}},
    {"b1 h1 s1x1000 d128 fp32", {&kScaled, &kBf16Weights}},
    {"b1 h2 s64x2000 d64 fp32", {&kScaled, &kBf16Weights, &kDroppedKey}},
    {"b2 h4 s128 d64 fp32", {&kScaled, &kBf16Weights, &kDroppedKey}},
    {"b1 h1 s16 d16 fp16", {&kDroppedKey}},
    {"b1 h1 s64 d64 fp16", {&kScaled, &kDroppedKey}},
    {"b2 h4 s128 d64 fp16", {&kScaled, &kDroppedKey}},
    {"b1 h1 s1x2 d1 bf16", {}},
    {"b1 h1 s16 d16 bf16", {&kDroppedKey}},
    {"b2 h4 s128 d64 bf16", {&kDroppedKey}},
};

bool is_rejected(const char* line, std::uint64_t seed, const Mistake& mistake, DeviceKind on = DeviceKind::cpu) {
  Inputs in = make_inputs(parse_problem(line), seed);
  in.poison_outputs();
  if (on == DeviceKind::cuda)
    in.oracle(serial_executor()), in.base(serial_executor()), in.exact().oracle(serial_executor());
  mistake.make(in);
  return !judge(in, serial_executor(), on).right;
}

constexpr std::uint64_t kSeeds = 20;

TEST(Sharpness, MistakesAreRejected) {
  for (const Size& size : kSizes)
    for (const Mistake* mistake : size.rejected)
      for (std::uint64_t seed = 0; seed < kSeeds; ++seed)
        EXPECT_TRUE(is_rejected(size.line, seed, *mistake)) << mistake->name << " " << size.line << " seed " << seed;
}

// A device may round operands to tf32, in every element or in none.
TEST(Sharpness, ProductsOfTf32) {
  for (const char* line : {"b1 h1 s16 d16 fp32 precision=tf32", "b1 h1 s64 d64 fp32 precision=tf32",
                           "b2 h4 s128 d64 fp32 precision=tf32"}) {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const auto rejected = [&](const Mistake& mistake, DeviceKind on) { return is_rejected(line, seed, mistake, on); };
      EXPECT_FALSE(rejected(kRight, DeviceKind::cuda)) << line << " seed " << seed;
      EXPECT_FALSE(rejected(kFp32, DeviceKind::cuda)) << line << " seed " << seed;
      EXPECT_FALSE(rejected(kFp32, DeviceKind::cpu)) << line << " seed " << seed;
      for (const Mistake* mistake : {&kCutOperands, &kDroppedKey, &kBf16Weights})
        EXPECT_TRUE(rejected(*mistake, DeviceKind::cuda)) << mistake->name << " " << line << " seed " << seed;
      EXPECT_TRUE(rejected(kRight, DeviceKind::cpu)) << "a CPU computes in fp32: " << line << " seed " << seed;
    }
  }
}

TEST(Sharpness, RightResultsAreAccepted) {
  for (const Size& size : kSizes)
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed)
      EXPECT_FALSE(is_rejected(size.line, seed, kRight)) << size.line << " seed " << seed;
}

// Right results that base beat by chance, and an fp16 result beside a base in fp32.
TEST(Sharpness, RightResultsOfAFewElementsAreAccepted) {
  const auto expect_right = [](const char* line, std::uint64_t seed, Distribution distribution) {
    Inputs in = make_inputs(parse_problem(line), seed, distribution);
    for (const Implementation* row : plan::implementations(in.problem.op)) {
      const Verdict v = check(*row, in);
      EXPECT_TRUE(v.right || !v.accepted) << row->name << " " << line << " seed " << seed << ": " << v.sentence;
    }
  };
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (const Distribution d : kDistributions) {
      for (const char* line :
           {"fwd b1 h1 s3x5 d1 fp32 strides=q:0,1,1;k:0,1,1;v:0,1,1;o:0,1,1",
            "fwd b1 h1 s1x2 d1 fp32 aligned_offset=-60", "fwd b1 h1 s1x2 d1 fp16", "fwd b1 h1 s2x3 d1 bf16",
            "merge n40 b1 h1 s1 d1 fp16 lse", "merge n2 b1 h1 s1 d1 bf16 lse", "softmax s1x3 fp16", "softmax s1x2 bf16",
            "softmax s1x40 fp32", "fwd b1 h1 s2x9 d4 fp32 scale=1e-38", "fwd b1 h1 s2x9 d4 fp16 scale=-1e-20",
            "quantize s1x96 fp32 mean", "quantize s2x64 bf16 mean hadamard", "flat_gemm m1 n1 k300 fp32",
            "flat_gemm m1 n2 k5 fp16"})
        expect_right(line, seed, d);
      if (d != Distribution::huge)
        for (const char* line :
             {"bwd b1 h1 s1x2 d1 fp32", "bwd b1 h1 s1x2 d1 bf16", "bwd b1 h1 s2x3 d1 fp16 alibi sinks"})
          expect_right(line, seed, d);
    }
  }
}

}  // namespace
}  // namespace onepass::check
