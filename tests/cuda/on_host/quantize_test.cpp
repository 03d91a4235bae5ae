// The quantizing kernels without a GPU, judged as on one, with poison around everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "check/inputs.hpp"
#include "check/verdict/verdict.hpp"
#include "cuda/quantize/quantize.hpp"
#include "on_host/quantize_source.hpp"

namespace onepass {
namespace {

using warps::QuantizeSource;

const QuantizeSource* const kSources[] = {&warps::quantize_tile_block,
                                          &warps::quantize_tile_block_plain,
                                          &warps::quantize_tile_estimate,
                                          &warps::quantize_tile_requantize,
                                          &warps::quantize_tile_own_estimate,
                                          &warps::quantize_tile_own_requantize,
                                          &warps::quantize_tile_wide_estimate,
                                          &warps::quantize_tile_wide_requantize,
                                          &warps::quantize_tile_shared_estimate,
                                          &warps::quantize_tile_shared_requantize,
                                          &warps::quantize_tile_plain_estimate,
                                          &warps::quantize_tile_plain_requantize,
                                          &warps::quantize_f32_amax,
                                          &warps::quantize_f32_means,
                                          &warps::quantize_f16_odd};

const QuantizeSource* source_of(const QuantizeConfig& config) {
  for (const QuantizeSource* source : kSources)
    if (*static_cast<const QuantizeConfig*>(source->config) == config) return source;
  return nullptr;
}

// Row 3 of the second head is not among those that a factor is estimated from.
void hide_large_numbers(const check::Inputs& inputs) {
  const ConstTensor& x = inputs.tensors.x;
  auto* const row = static_cast<std::uint16_t*>(const_cast<void*>(x.data)) + x.stride[1] + 3 * x.stride[2];
  std::fill_n(row, x.shape[3], std::uint16_t{0x63d0});  // 1000 in fp16, 7.7e21 in bf16
}

// Heads that share a scale count each.
int requantized_heads(const check::Inputs& inputs, const QuantizeParams& params) {
  int requantized = 0;
  const Dims& s = inputs.problem.layout.descale;
  for (int head = 0; head < inputs.problem.batch * inputs.problem.heads_q; ++head) {
    const auto at = head / params.heads * s[0] + head % params.heads * s[1];
    requantized += static_cast<const float*>(inputs.tensors.descale.data)[at] != params.sums[head];
  }
  return requantized;
}

void expect_right_and_the_librarys(std::uint64_t seed) {
  int estimated = 0, requantized = 0;
  for (const QuantizeSource* source : kSources) {
    const Problem p = parse_problem(source->problem);
    if (p.op != kQuantize) continue;
    for (const check::Distribution distribution : check::kDistributions) {
      check::Inputs inputs = check::make_inputs(p, seed, distribution);
      // With few multiprocessors, a CTA has several tiles in turn.
      const bool several = static_cast<const QuantizeConfig*>(source->config)->several;
      const cuda::QuantizePlan plan = cuda::select_quantize(inputs.problem, several ? 0 : 132).value();
      const bool estimates = plan.steps()[0].config.part == QuantizePart::estimate;
      if (estimates) hide_large_numbers(inputs);
      std::vector<float> workspace(plan.workspace_bytes() / sizeof(float) + 1, -7.0f);
      QuantizeParams params = cuda::quantize_params(inputs.problem, plan);
      cuda::bind(params, plan, inputs.tensors, workspace.data());
      inputs.poison_outputs();
      for (const auto& [config, blocks] : plan.steps()) {
        const QuantizeSource* const step = source_of(config);
        ASSERT_TRUE(step) << source->problem << ": the library takes another config by now";
        step->run(&params, static_cast<unsigned>(blocks));
      }
      if (estimates) {
        estimated += plan.heads, requantized += requantized_heads(inputs, params);
      }
      EXPECT_EQ(workspace.back(), -7.0f) << "written past the workspace";
      const check::Verdict verdict = check::judge_quantized(inputs);
      EXPECT_TRUE(verdict.right) << source->problem << " " << check::name_of(distribution) << " seed " << seed << ": "
                                 << verdict.sentence;
    }
  }
  EXPECT_GT(requantized, 0);
  EXPECT_LT(requantized, estimated);
}

TEST(EmulatedQuantize, IsRightAndTheLibrarys) { expect_right_and_the_librarys(2); }
TEST(EmulatedQuantize, IsRightOnMoreInputs) { expect_right_and_the_librarys(3); }

}  // namespace
}  // namespace onepass
