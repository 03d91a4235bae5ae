// Whole tiles that a mask_mod hides are not read: NaN and infinity there reach nothing.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string_view>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/check.hpp"
#include "onepass/attention.hpp"
#include "plan/implementations.hpp"
#include "reference/reference.hpp"
#include "support/backward_problem.hpp"

namespace onepass::check {
namespace {

// Token t of every head of [batch, heads, seq, dim] becomes NaN or an infinity, if hidden(t).
template <class Hidden>
void spoil(const ConstTensor& t, const Hidden& hidden) {
  if (!t.given()) return;
  for (std::int64_t token = 0; token < t.shape[2]; ++token) {
    if (!hidden(token)) continue;
    const float x = token % 3 == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t b = 0; b < t.shape[0]; ++b)
      for (std::int64_t h = 0; h < t.shape[1]; ++h)
        for (std::int64_t d = 0; d < t.shape[3]; ++d)
          store_element(Inputs::writable<void>(t), t.dtype,
                        b * t.stride[0] + h * t.stride[1] + token * t.stride[2] + d * t.stride[3], x);
  }
}

// Documents of random lengths. Every third is hidden: its rows see nothing, and no row sees its keys.
TEST(BlockMask, WhatIsHiddenMayBeNaN) {
  std::mt19937 random(7);
  for (int round = 0; round < 4; ++round) {
    const std::int64_t seq = 200 + static_cast<std::int64_t>(random() % 300);
    std::vector<std::int32_t> doc(static_cast<std::size_t>(seq));
    for (std::size_t i = 1; i < doc.size(); ++i) doc[i] = doc[i - 1] + (random() % 90 == 0);
    const auto hidden = [&](std::int64_t token) { return doc[static_cast<std::size_t>(token)] % 3 == 2; };
    const char* const dtype = round % 2 ? "bf16" : "fp32";
    const char* const mask = round % 4 < 2
                                 ? "doc[q_index] == doc[k_index] && doc[k_index] % 3 != 2"
                                 : "doc[q_index] == doc[k_index] && doc[k_index] % 3 != 2 && q_index >= k_index";
    const std::string line = text("b2 h4/", round % 3 == 0 ? 4 : 2, " s", seq, " d", round % 5 ? 64 : 40, " ", dtype,
                                  " lse mask_mod={", mask, "} buffer=doc:int32:", seq);
    for (const bool backward : {false, true}) {
      Problem p = parse_problem(line);
      if (backward) p = test::backward_of(p, false, false);
      Inputs inputs = make_inputs(p, static_cast<std::uint64_t>(round));
      inputs.tensors.mod_buffers[0].tensor = ConstTensor(doc.data(), DType::i32, {seq});
      const Tensors& t = inputs.tensors;
      for (const ConstTensor& x : {t.q, t.k, t.v, t.dout}) spoil(x, hidden);
      int takers = 0;
      for (const Implementation* row : plan::implementations(p.op)) {
        if (reference::is_reference(*row)) continue;
        const Verdict verdict = check(*row, inputs);
        takers += verdict.accepted;
        EXPECT_TRUE(verdict.right || !verdict.accepted) << row->name << " \"" << line << "\": " << verdict.sentence;
      }
      EXPECT_GT(takers, 0) << line;
    }
  }
}

TEST(BlockMask, ExplainCountsTiles) {
  const auto line = [](const char* problem) {
    const std::string all = explain(problem);
    return all.substr(all.find('\n') + 1, all.find('\n', all.find('\n') + 1) - all.find('\n') - 1);
  };
  EXPECT_EQ(line("fwd s1024 d64 mask_mod={q_index >= k_index}"),
            "mask_mod: 28 of 64 tiles of 128 x 128 are empty, 28 need no mask (head 0, batch entry 0)");
  EXPECT_EQ(line("fwd s1024 d64 mask_mod={doc[q_index] == doc[k_index]} buffer=doc:int32:1024"),
            "mask_mod: the number of empty tiles depends on the buffers");
}

}  // namespace
}  // namespace onepass::check
