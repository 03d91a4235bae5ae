// Finite inputs at the ends of fp32: scores beyond 5e8, biases that no log2 unit holds, scales that fp32 rounds to 0.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "algebra/numerics.hpp"
#include "check/inputs.hpp"
#include "check/verdict/verdict.hpp"
#include "support/named_params.hpp"

namespace onepass::test {

struct Extreme {
  const char* name;
  bool (*fits)(const Problem&);  // also used for these problems, besides the lines
  std::vector<std::string> lines;
  std::function<void(check::Inputs&)> make;
};

inline void fill(const ConstTensor& t, const std::function<float(std::int64_t token, std::int64_t d)>& value) {
  for (std::int64_t b = 0; b < t.shape[0]; ++b)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t i = 0; i < t.shape[2]; ++i)
        for (std::int64_t d = 0; d < t.shape[3]; ++d)
          store_element(check::Inputs::writable<void>(t), t.dtype,
                        b * t.stride[0] + h * t.stride[1] + i * t.stride[2] + d * t.stride[3], value(i, d));
}

// Row by row: only the lowest number; one key at 0; one key far above; two levels below log2's range.
inline float far_bias(std::int64_t row, std::int64_t key) {
  constexpr float kLowest = -3.38e38f;  // of bf16 too
  switch (row % 4) {
    case 0: return kLowest;
    case 1: return key == 3 ? 0.0f : kLowest;
    case 2: return key == 5 ? 2.4e38f : 0.0f;
    default: return key % 3 == 0 ? -2.5e38f : kLowest;
  }
}

inline const std::vector<Extreme>& extremes() {
  static const std::vector<Extreme> all = {
      {"EqualScoresOf1e11",  // which swallow a bias in fp32, but not in the oracle
       [](const Problem& p) { return p.dtype != DType::f16 && !p.bias && !p.alibi; },
       {"h2 s40x300 d64 fp32 lse", "h2 s40x300 d64 bf16 causal_bottom_right lse", "h4/2 s2x3000 d64 fp32 lse",
        "h2 s200x150 d64 bf16 window=40:5 sinks lse", "h2 s70x200 d64 bf16 dropout=0.3 lse", "h2 s33x1 d8 fp32 lse",
        "h2 s200 d128 bf16 out=fp32 lse", "h4/2 s40x3000 d64 fp32 lse"},
       [](check::Inputs& in) {
         fill(in.tensors.q, [](auto, auto) { return 1e5f; });
         fill(in.tensors.k, [](auto, auto) { return 1.1e5f; });
       }},
      {"RisingScoresUpTo1e38",
       [](const Problem& p) { return p.dtype != DType::f16; },
       {"h2 s40x300 d64 fp32 lse", "h2 s40x300 d64 bf16 causal_bottom_right lse", "h4/2 s2x3000 d64 fp32 lse",
        "h2 s200x300 d128 bf16 alibi lse", "h4/2 s1x3000 d128 bf16 lse"},
       [](check::Inputs& in) {  // one product each, so no partial sum overflows
         fill(in.tensors.q, [](auto, std::int64_t d) { return d == 0 ? 1e20f : 0.0f; });
         const auto keys = static_cast<float>(in.problem.seq_k);
         const auto most = static_cast<float>(1e18 / in.problem.effective_scale());
         fill(in.tensors.k, [=](std::int64_t j, std::int64_t d) {
           return d == 0 ? most * (static_cast<float>(j / 7) / keys) : 0.0f;
         });
       }},
      {"LowScoresOf1e38",
       [](const Problem& p) { return p.dtype != DType::f16; },
       {"h2 s40x300 d64 fp32 scale=1 lse", "h2 s40x300 d64 bf16 scale=1 causal_bottom_right lse",
        "h4/2 s2x3000 d64 fp32 scale=1 sinks lse", "h2 s200 d128 bf16 alibi scale=1 lse"},
       [](check::Inputs& in) {  // the products must be finite themselves
         fill(in.tensors.q, [](auto, std::int64_t d) { return d == 0 ? 1e20f : 0.0f; });
         fill(in.tensors.k, [](auto, std::int64_t d) { return d == 0 ? -3e18f : 0.0f; });
       }},
      {"BiasesBeyondLog2",
       [](const Problem& p) { return p.bias && p.bias->dtype != DType::f16; },
       {"h4/2 s40x300 d40 fp32 bias=fp32:11qk lse", "h2 s200x300 d64 bf16 bias=bf16:bhqk lse",
        "h2 s40x300 d64 bf16 bias=fp32:11qk sinks lse", "h4/2 s2x3000 d64 fp32 bias=fp32:11qk lse",
        "h2 s70x100 d64 fp16 bias=fp32:11qk softcap=20 lse", "h4/2 s40x3000 d64 fp32 bias=bf16:11qk lse",
        "h2 s200x300 d128 bf16 bias=bf16:11qk out=fp32 lse", "h2 s70x200 d64 bf16 bias=fp32:11qk dropout=0.2 lse"},
       [](check::Inputs& in) { fill(in.tensors.bias, far_bias); }},
      {"SlopesOf1e36",
       [](const Problem& p) { return p.alibi; },
       {"h2 s40x300 d64 fp32 alibi lse", "h2 s200x250 d64 bf16 alibi causal_bottom_right lse",
        "h2 s2x300 d64 fp32 alibi lse"},
       [](check::Inputs& in) {
         const ConstTensor& t = in.tensors.alibi_slopes;
         for (std::int64_t i = 0; i < t.elements(); ++i) check::Inputs::writable<float>(t)[i] = 1e36f;
       }},
      {"ScoreModsBeyondLog2",
       [](const Problem&) { return false; },
       {"h2 s40x300 d64 fp32 score_mod={k_index % 3 == 0 ? score - 2.5e38f : score - 3e38f} lse",
        "h2 s3x300 d64 fp32 score_mod={k_index == q_index ? score + 2.4e38f : score} lse"},
       [](check::Inputs&) {}},
      {"ScalesThatVanish",
       [](const Problem&) { return false; },
       {"h2 s40x300 d64 fp32 scale=1e-42 causal_bottom_right lse", "h2 s200x300 d64 bf16 scale=-1e-42 window=9:3 lse",
        "h2 s2x300 d64 fp32 scale=1e-46 causal_bottom_right lse"},
       [](check::Inputs& in) {
         fill(in.tensors.q, [](auto, auto) { return 1.0f; });
         fill(in.tensors.k, [](auto, auto) { return 1.0f; });
       }},
  };
  return all;
}

// Right by the rule, and close to the oracle: at these scores the 16-bit base allows more than an fp32 kernel needs.
inline double most_error(DType dtype) { return dtype == DType::f32 ? 1e-4 : 0.02; }
inline void expect_close(const check::Verdict& verdict, DType dtype, const std::string& what) {
  EXPECT_TRUE(verdict.right) << what << ": " << verdict.sentence;
  EXPECT_LE(verdict.max_error, most_error(dtype)) << what << ": " << verdict.sentence;
}

}  // namespace onepass::test
