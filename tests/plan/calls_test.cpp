// Memory that grows with its plans, explanations of calls, and the version.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "onepass/onepass.h"
#include "onepass/onepass.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

TEST(WorkspaceMemory, GrowsWithItsPlansAndNeverShrinks) {
  const Plan large = make_plan("b1 h2 s1x4000 d64 fp32"), small = make_plan("b1 h2 s1x400 d64 fp32");
  ASSERT_GT(large.workspace_bytes(), small.workspace_bytes());
  WorkspaceMemory memory;
  EXPECT_EQ(memory.capacity(), 0);
  EXPECT_EQ(memory.of(small).size(), small.workspace_bytes());
  EXPECT_EQ(memory.of(large).size(), large.workspace_bytes());
  const std::byte* const at = memory.of(large).data();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % 64, 0);
  EXPECT_EQ(memory.of(small).data(), at);
  EXPECT_EQ(memory.capacity(), large.workspace_bytes());

  WorkspaceMemory moved = std::move(memory);
  EXPECT_EQ(moved.of(small).data(), at);
  EXPECT_EQ(memory.capacity(), 0);  // NOLINT(bugprone-use-after-move): it can be used again
  EXPECT_NE(memory.take(1).data(), nullptr);
}

TEST(WorkspaceMemory, ServesRuns) {
  std::vector<float> x(2 * 40 * 16, 1.0f), out(x.size());
  const std::vector<std::int64_t> shape{1, 2, 40, 16};
  const AttentionTensors t{.q = view(x.data(), shape),
                           .k = view(x.data(), shape),
                           .v = view(x.data(), shape),
                           .out = view(out.data(), shape)};
  const Plan plan = make_plan(t);
  WorkspaceMemory memory(1 << 10);
  run(plan, t, {.workspace = memory.of(plan)});
  EXPECT_FLOAT_EQ(out[0], 1.0f);
}

// A plan of an operator's own tensors computes the same as its function.
TEST(Plan, OfEachOperatorsTensorsComputesWhatItsFunctionDoes) {
  std::vector<float> a(64), b(64);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = 0.25f * static_cast<float>(i % 7), b[i] = static_cast<float>(i % 5);
  const auto same = [&](std::size_t count, auto&& tensors, auto&& compute, const auto&... options) {
    std::vector<float> planned(count), called(count);
    const auto t = tensors(planned.data());
    const Plan plan = make_plan(t, options...);
    WorkspaceMemory memory;
    run(plan, t, {.workspace = memory.of(plan)});
    compute(called.data());
    EXPECT_EQ(planned, called) << plan.problem();
    EXPECT_NE(planned, std::vector<float>(count)) << plan.problem();
  };
  const auto t = [](auto* data, std::initializer_list<std::int64_t> shape) { return view(data, shape); };
  const ConstTensor x = t(a.data(), {4, 16}), w = t(b.data(), {4, 16});
  const SoftmaxOptions half{.scale = 0.5};
  same(
      64, [&](float* y) { return SoftmaxTensors{.x = x, .y = t(y, {4, 16})}; },
      [&](float* y) { softmax(x, t(y, {4, 16}), {}, half); }, half);
  same(
      64, [&](float* dx) { return SoftmaxBackwardTensors{.y = x, .dy = w, .dx = t(dx, {4, 16})}; },
      [&](float* dx) { softmax_backward(x, w, t(dx, {4, 16}), half); }, half);
  same(
      16, [&](float* y) { return FlatGemmTensors{.x = x, .w = w, .y = t(y, {4, 4})}; },
      [&](float* y) { flat_gemm(x, w, t(y, {4, 4})); });
  same(
      16, [&](float* y) { return LinearTensors{.x = x, .w = w, .y = t(y, {4, 4})}; },
      [&](float* y) { linear(x, w, t(y, {4, 4})); });
  const std::vector<ConstTensor> outs{x, w}, lses{t(a.data(), {4}), t(b.data(), {4})};
  same(
      64, [&](float* out) { return MergeTensors{.outs = outs, .lses = lses, .out = t(out, {4, 16})}; },
      [&](float* out) { merge(outs, lses, t(out, {4, 16})); });
  std::vector<std::uint8_t> bits(64);
  const Tensor y(bits.data(), DType::f8e4m3, {4, 16});
  const QuantizeOptions rotated{.hadamard = true, .seed = 3};
  same(
      1, [&](float* descale) { return QuantizeTensors{.x = x, .y = y, .descale = t(descale, {1, 1, 1})}; },
      [&](float* descale) { quantize(x, y, t(descale, {1, 1, 1}), {}, rotated); }, rotated);
}

// As by run(). Each call has an output inside another tensor of it.
TEST(Plan, OfTensorsThatShareMemoryIsRefused) {
  std::vector<float> a(64), b(64), c(64);
  std::vector<std::uint8_t> e4m3(64);
  const auto t = [](std::vector<float>& data, std::initializer_list<std::int64_t> shape) {
    return view(data.data(), shape);
  };
  const auto refused = [](const auto& tensors, const std::string& sentence) {
    EXPECT_EQ(test::sentence_of([&] { static_cast<void>(make_plan(tensors)); }), sentence);
  };
  const Tensor x = t(a, {1, 1, 4, 8});
  refused(AttentionTensors{.q = x, .k = x, .v = x, .out = x}, "out must not share memory with q");
  refused(AttentionTensors{.q = x, .k = x, .v = x, .out = t(b, {1, 1, 4, 8}), .lse = t(b, {1, 1, 4})},
          "lse must not share memory with out");
  refused(MergeTensors{.outs = {x}, .lses = {t(c, {1, 1, 4})}, .out = t(b, {1, 1, 4, 8}), .lse = t(b, {1, 1, 4})},
          "lse must not share memory with out");
  refused(MergeTensors{.outs = {x}, .lses = {t(c, {1, 1, 4})}, .out = view(a.data() + 8, {1, 1, 4, 8}), .lse = {}},
          "out must not share memory with outs[0]");
  refused(SoftmaxTensors{.x = t(a, {4, 8}), .y = t(b, {4, 8}), .lse = t(b, {4})}, "y must not share memory with lse");
  refused(FlatGemmTensors{.x = t(a, {4, 8}), .w = t(b, {4, 8}), .y = t(a, {4, 4})}, "y must not share memory with x");
  refused(LinearTensors{.x = t(a, {4, 8}), .w = t(b, {4, 8}), .y = t(b, {4, 4})}, "y must not share memory with w");
  refused(QuantizeTensors{.x = x,
                          .y = Tensor(e4m3.data(), DType::f8e4m3, {1, 1, 4, 8}),
                          .descale = t(b, {1, 1, 1}),
                          .mean = t(b, {1, 1, 8})},
          "mean must not share memory with descale");
}

// Each explanation begins with the line of its problem, and names what a call would run.
TEST(Explain, OfACallIsThatOfItsProblem) {
  std::vector<float> a(64), b(64), c(64), d(8), e(64);
  const auto t = [](std::vector<float>& data, std::initializer_list<std::int64_t> shape) {
    return view(data.data(), shape);
  };
  const std::vector<ConstTensor> outs{t(a, {1, 1, 4, 8}), t(b, {1, 1, 4, 8})}, lses{t(d, {1, 1, 4}), t(d, {1, 1, 4})};
  std::vector<std::uint8_t> e4m3(64);
  const std::int32_t used = 2;
  const Tensor y(e4m3.data(), DType::f8e4m3, {1, 1, 8, 8});
  const std::pair<std::string, const char*> cases[] = {
      {explain({.q = t(a, {1, 2, 4, 8}), .k = t(b, {1, 2, 4, 8}), .v = t(e, {1, 2, 4, 8}), .out = t(c, {1, 2, 4, 8})},
               {.band = {.causal = true}}),
       "fwd h2 s4 d8 fp32 causal_bottom_right"},
      {explain(AppendTensors{.k_new = t(a, {1, 2, 1, 8}),
                             .v_new = t(b, {1, 2, 1, 8}),
                             .k = t(c, {1, 2, 4, 8}),
                             .v = t(a, {1, 2, 4, 8}),
                             .cache_seqlens = view(&used, {1})}),
       "append h2 s1x4 d8 fp32 cache_seqlens"},
      {explain(MergeTensors{.outs = outs, .lses = lses, .out = t(c, {1, 1, 4, 8})}), "merge n2 h1 s4 d8 fp32"},
      {explain(SoftmaxTensors{.x = t(a, {4, 16}), .y = t(b, {4, 16})}, {.log = true}),
       "softmax h1 s4x16 fp32 scale=1 log"},
      {explain(SoftmaxBackwardTensors{.y = t(a, {4, 16}), .dy = t(b, {4, 16}), .dx = t(c, {4, 16})}),
       "softmax_bwd h1 s4x16 fp32 scale=1"},
      {explain(QuantizeTensors{.x = t(a, {1, 1, 8, 8}), .y = y, .descale = t(d, {1, 1, 1})}), "quantize h1 s8x8 fp32"},
      {explain(FlatGemmTensors{.x = t(a, {4, 8}), .w = t(b, {4, 8}), .y = t(c, {4, 4})}), "flat_gemm m4 n4 k8 fp32"},
      {explain(LinearTensors{.x = t(a, {4, 8}), .w = t(b, {4, 8}), .y = t(c, {4, 4})}), "linear m4 n4 k8 fp32"},
  };
  for (const auto& [text, line] : cases) {
    const std::string of_line = explain(line);
    EXPECT_EQ(text.substr(0, text.find('\n')), of_line.substr(0, of_line.find('\n')));
    EXPECT_NE(text.find("\n* "), text.npos) << text;
  }
}

TEST(Version, OfTheHeadersAndOfTheLibraryIsOne) {
  EXPECT_EQ(version(), ONEPASS_VERSION);
  EXPECT_EQ(version(), onepass_version());
}

}  // namespace
}  // namespace onepass
