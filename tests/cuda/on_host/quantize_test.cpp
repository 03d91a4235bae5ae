// The quantizing kernels without a GPU, judged as on one, with poison around everything.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "check/inputs.hpp"
#include "check/verdict.hpp"
#include "cuda/quantize/quantize.hpp"
#include "on_host/quantize_source.hpp"

namespace onepass {
namespace {

using warps::QuantizeSource;

const QuantizeSource* const kSources[] = {&warps::quantize_bf16_blocks, &warps::quantize_bf16_survey,
                                          &warps::quantize_bf16_heads,  &warps::quantize_f32_survey,
                                          &warps::quantize_f32_means,   &warps::quantize_f16_odd};

const QuantizeSource* source_of(const QuantizeConfig& config) {
  for (const QuantizeSource* source : kSources)
    if (*static_cast<const QuantizeConfig*>(source->config) == config) return source;
  return nullptr;
}

TEST(EmulatedQuantize, IsRightAndTheLibrarys) {
  for (const QuantizeSource* source : kSources) {
    const Problem p = parse_problem(source->problem);
    if (p.op != Op::quantize) continue;
    for (const check::Distribution distribution : check::kDistributions) {
      for (const std::uint64_t seed : {2, 3}) {
        check::Inputs inputs = check::make_inputs(p, seed, distribution);
        cuda::QuantizePlan plan;
        std::string why;
        ASSERT_TRUE(cuda::select_quantize(inputs.problem, plan, why)) << why;
        const QuantizeSource *last = source_of(plan.config), *first = source_of(plan.survey_config());
        ASSERT_TRUE(last && (first || !plan.surveys()))
            << source->problem << ": the library takes another config by now";
        std::vector<float> workspace(plan.workspace_bytes() / sizeof(float) + 1, -7.0f);
        const QuantizeParams params = cuda::quantize_params(inputs.problem, plan, inputs.tensors, workspace.data());
        inputs.poison_outputs();
        if (plan.surveys()) first->run(&params, static_cast<unsigned>(plan.heads * plan.pieces));
        last->run(&params, static_cast<unsigned>(plan.heads * plan.blocks));
        EXPECT_EQ(workspace.back(), -7.0f) << "written past the workspace";
        const check::Verdict verdict = check::judge_quantized(inputs);
        EXPECT_TRUE(verdict.right) << source->problem << " " << check::name_of(distribution) << " seed " << seed << ": "
                                   << verdict.sentence;
      }
    }
  }
}

}  // namespace
}  // namespace onepass
