// A score_mod or mask_mod that says what a built-in feature does gives what the feature gives.
#include <gtest/gtest.h>

#include <cmath>

#include "algebra/numerics.hpp"
#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "support/sentence.hpp"

namespace onepass::check {
namespace {

// Turns the call of a problem with a feature into that of one with a mod.
struct Same {
  const char* line;
  void (*instead)(Inputs&);
};

void scores_by(Inputs& o, const char* source, std::vector<NamedTensor> buffers = {}) {
  o.attention.score_mod = source;
  o.tensors.mod_buffers = std::move(buffers);
}
void mask_by(Inputs& o, const char* source, std::vector<NamedTensor> buffers = {}) {
  o.attention.mask_mod = source;
  o.tensors.mod_buffers = std::move(buffers);
}

const Same kSame[] = {
    {"b2 h4/2 s70x133 d64 lse alibi",
     [](Inputs& o) {
       scores_by(o, "score - slope[head] * abs(q_index + 63 - k_index)", {{"slope", o.tensors.alibi_slopes}});
       o.tensors.alibi_slopes = {};
     }},
    {"b2 h4/2 s3x133 d64 lse softcap=7",
     [](Inputs& o) {
       scores_by(o, "7.0f * tanh(score / 7.0f)");
       o.attention.softcap = 0;
     }},
    {"b2 h4/2 s70x133 d64 lse bias=fp16:bhqk",
     [](Inputs& o) {
       scores_by(o, "score + bias(batch, head, q_index, k_index)", {{"bias", o.tensors.bias}});
       o.tensors.bias = {};
     }},
    {"b2 h4/2 s70x133 d64 lse scale=0.5",
     [](Inputs& o) {
       scores_by(o, "score * 0.5f");
       o.attention.scale = 1.0;
     }},
    {"b2 h4/2 s70x133 d64 lse mask=b1qk",
     [](Inputs& o) {
       mask_by(o, "seen(batch, 0, q_index, k_index)", {{"seen", o.tensors.bool_mask}});
       o.tensors.bool_mask = {};
     }},
    {"b2 h4/2 s70x133 d64 lse causal_bottom_right",
     [](Inputs& o) {
       mask_by(o, "k_index <= q_index + 63");
       o.attention.band = {};
     }},
    {"b2 h4/2 s8x133 d64 lse causal_top_left",
     [](Inputs& o) {
       mask_by(o, "k_index <= q_index");
       o.attention.band = {};
     }},
    {"b2 h4/2 s133 d64 lse window=20:5",
     [](Inputs& o) {
       mask_by(o, "q_index - k_index <= 20 && k_index - q_index <= 5");
       o.attention.band = {};
     }},
    {"b2 h4/2 s133 d64 lse causal_bottom_right window=20:0",
     [](Inputs& o) {  // half of it each way
       mask_by(o, "q_index - k_index <= 20");
       o.attention.band.left = -1;
     }},
};

float largest_difference(const ConstTensor& a, const ConstTensor& b) {
  float most = 0;
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    const float x = load_element(a.data, a.dtype, i), y = load_element(b.data, b.dtype, i);
    if (x != y) most = std::max(most, std::isfinite(x - y) ? std::abs(x - y) : INFINITY);
  }
  return most;
}

TEST(Mods, SayWhatBuiltInFeaturesDo) {
  int compared = 0;
  for (const Same& same : kSame) {
    Inputs feature = make_inputs(parse_problem(same.line)), mod = make_inputs(parse_problem(same.line));
    same.instead(mod);
    for (const Implementation* row : plan::implementations()) {
      const auto run = [&](Inputs& in) {
        in.poison_outputs();
        in.implementation = row->name;
        in.attend();
      };
      if (!why_not(*row, problem_of(mod.tensors, mod.attention)).empty()) continue;
      run(feature);
      run(mod);
      EXPECT_LE(largest_difference(feature.tensors.out, mod.tensors.out), 3e-5f) << row->name << " " << same.line;
      EXPECT_LE(largest_difference(feature.tensors.lse, mod.tensors.lse), 3e-5f) << row->name << " " << same.line;
      ++compared;
    }
  }
  EXPECT_GE(compared, 2 * 9);  // the reference and one SIMD target at least
}

// Documents packed one behind the other, told apart by their ids, are what varlen makes of them.
TEST(Mods, DocumentIdsAreVariableLengths) {
  Inputs packed = make_inputs(parse_problem("h4/2 d64 varlen=50,1,33,49 causal_bottom_right lse"));
  std::vector<std::int32_t> document;
  for (const int n : {50, 1, 33, 49}) document.insert(document.end(), n, document.empty() ? 0 : document.back() + 1);
  const Tensors& a = packed.tensors;
  packed.attend();
  const auto as_one = [](const ConstTensor& t) {
    return ConstTensor(t.data, t.dtype, {1, t.shape[1], t.shape[0], t.shape[2]}, {0, t.stride[1], t.stride[0], 1});
  };
  std::vector<float> out(a.out.elements());
  const Tensor one(out.data(), DType::f32, {1, 4, 133, 64}, {0, 64, 256, 1});
  attention({.q = as_one(a.q),
             .k = as_one(a.k),
             .v = as_one(a.v),
             .out = one,
             .mod_buffers = {{"document", Tensor(document.data(), DType::i32, {133})}}},
            {.band = {.causal = true}, .mask_mod = "document[q_index] == document[k_index]"});
  EXPECT_LE(largest_difference(a.out, Tensor(out.data(), DType::f32, {133, 4, 64})), 3e-5f);
}

// Offsets that do not fit 32 bits: two flags 2 GiB apart, in memory that is mapped but hardly touched.
TEST(Mods, BuffersMayBeLarge) {
  constexpr std::int64_t kApart = (std::int64_t{1} << 31) + 5;
  Buffer memory(kApart + 1);
  auto* flags = reinterpret_cast<std::uint8_t*>(memory.data());
  flags[0] = 0;
  flags[kApart] = 1;
  Inputs in = make_inputs(parse_problem("h2 s2x5 d8"));
  const Tensors& a = in.tensors;
  in.attention.mask_mod = "flags[q_index]";
  in.tensors.mod_buffers = {{"flags", Tensor(flags, DType::boolean, {2}, {kApart})}};
  in.attend();
  const auto* out = static_cast<const float*>(a.out.data);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_NE(out[a.out.stride[2]], 0.0f);
}

TEST(Mods, MissingAndStrangeBuffersAreNamed) {
  Inputs in = make_inputs(parse_problem("h2 s5 d8"));
  const Tensors& a = in.tensors;
  const auto sentence = [&](std::vector<NamedTensor> buffers) {
    in.attention.score_mod = "score + table[head]";
    in.tensors.mod_buffers = std::move(buffers);
    in.poison_outputs();
    const std::string said = test::sentence_of([&] { in.attend(); });
    EXPECT_EQ(std::isnan(static_cast<const float*>(a.out.data)[0]), !said.empty());
    return said;
  };
  const float values[2] = {0, 1};
  EXPECT_NE(sentence({}).find("column 9: 'table'"), std::string::npos);
  EXPECT_EQ(sentence({{"table", ConstTensor(values, DType::f32, {2})}}), "");
  EXPECT_EQ(sentence({{"table", ConstTensor(nullptr, DType::f32, {2})}}),
            "mod buffer table must have data for shape [2] (got a null pointer)");
  EXPECT_EQ(sentence({{"table", Tensor()}}), "mod buffer table must be given");
  EXPECT_EQ(sentence({{"table", ConstTensor(values, DType::f32, {2}, {DeviceKind::cuda, 0})}}),
            "mod buffer table must be on cpu, as q (got cuda:0)");
  EXPECT_NE(sentence(std::vector<NamedTensor>(9, {"t", ConstTensor(values, DType::f32, {2})}))
                .find("mod_buffers must have at most 8 buffers (got 9)"),
            std::string::npos);
}

}  // namespace
}  // namespace onepass::check
