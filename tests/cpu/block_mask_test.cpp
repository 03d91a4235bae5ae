// Whole tiles that a mask_mod hides are not read: NaN and infinity there reach nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "check/check.hpp"
#include "onepass/attention.hpp"
#include "onepass/block_mask.hpp"
#include "plan/implementations.hpp"
#include "support/backward_problem.hpp"
#include "support/cpu_kernels.hpp"
#include "support/partly_unreadable.hpp"

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
      test::expect_all_right(test::cpu_kernels(p.op), inputs, "hidden");
    }
  }
}

TEST(BlockMask, NoChunkThatAllRowsHideIsRead) {
  int runs = 0;
  for (const char* const mask : {"mask_mod={k_index < 576 || k_index >= 3072}", "block_mask=111k mask_tile_k=96"}) {
    for (const char* const more : {"", " batch_invariant", " unified_max=0", " bf16", " bf16 batch_invariant"}) {
      for (const int rows : {1, 4, 100, 300}) {
        Inputs inputs = make_inputs(parse_problem(text("s", rows, "x4096 d64 lse ", mask, more)), 2);
        std::array<std::int32_t, 43> states{};
        std::fill_n(states.begin(), 6, 1), std::fill(states.begin() + 32, states.end(), 2);
        if (inputs.problem.block_mask) inputs.tensors.block_mask.data = states.data();
        const ConstTensor k = inputs.tensors.k, v = inputs.tensors.v;
        for (const ConstTensor& t : {inputs.tensors.q, k, v})  // what the drawn tiles hide is NaN
          for (std::int64_t i = 0; i < t.elements(); ++i)
            store_element(Inputs::writable<void>(t), t.dtype, i, static_cast<float>(i % 101) / 50 - 1);
        for (const Implementation* row : plan::implementations(kForward)) {
          const std::string_view name = row->name;
          const bool tiles = name.starts_with("cpu.amx");  // packs 128 keys at once
          if (!name.starts_with("cpu.decode") && !name.starts_with("cpu.flash") && !tiles) continue;
          const test::PartlyUnreadable some_k(k), some_v(v);
          for (const auto* const some : {&some_k, &some_v}) some->hide(tiles ? 640 : 576, 3072);
          inputs.tensors.k = k, inputs.tensors.v = v;
          if (!run_on(*row, inputs, serial_executor())) continue;
          const auto out = [&] {
            const auto* const x = static_cast<const std::byte*>(inputs.tensors.out.data);
            return std::vector<std::byte>(x, x + std::size_t(rows) * 64 * size_of(inputs.tensors.out.dtype));
          };
          const std::vector<std::byte> all = out();
          inputs.tensors.k = some_k.tensor(), inputs.tensors.v = some_v.tensor();
          ASSERT_TRUE(run_on(*row, inputs, serial_executor()));
          EXPECT_EQ(out(), all) << row->name << more;
          ++runs;
        }
      }
    }
  }
  EXPECT_GT(runs, 0);
}

TEST(BlockMask, ExplainCountsTheTilesOfACall) {
  const std::vector<float> x(1000 * 64);
  std::vector<float> y(1000 * 64);
  const ConstTensor in(x.data(), DType::f32, {1, 1, 1000, 64});
  AttentionTensors t{.q = in, .k = in, .v = in, .out = Tensor(y.data(), DType::f32, {1, 1, 1000, 64})};
  const BlockMask mask =
      block_mask("q_index >= k_index", {}, {.seq_q = 1000, .seq_k = 1000, .tile_q = 100, .tile_k = 250});
  const std::vector<std::int32_t> states = mask.states();
  EXPECT_EQ(std::ranges::count(states, 0), 14);
  EXPECT_EQ(std::ranges::count(states, 1), mask.mixed.count());
  EXPECT_EQ(std::ranges::count(states, 2), mask.full.count());
  t.block_mask = ConstTensor(states.data(), DType::i32, {1, 1, 10, 4});
  const std::string all = explain(t, {.mask_mod = "q_index >= k_index", .mask_tile_q = 100, .mask_tile_k = 250});
  EXPECT_NE(all.find("\nblock_mask and mask_mod: 14 of 40 tiles of 100 x 250 are empty, " + text(mask.full.count()) +
                     " need no mask (head 0, batch entry 0)\n"),
            all.npos)
      << all;
  EXPECT_NE(all.find(", block_mask of 100 x 250 tiles"), all.npos) << all;
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
  EXPECT_EQ(line("fwd s0x300 d64 mask_mod={q_index >= k_index}"), "mask_mod: there are no tiles");
  EXPECT_EQ(line("fwd s20000000 d8 mask_mod={q_index >= k_index}"),
            "mask_mod: there are too many tiles of 128 x 128 to count");
}

}  // namespace
}  // namespace onepass::check
