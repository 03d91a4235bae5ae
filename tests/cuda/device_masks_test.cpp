// Hidden keys, on every CUDA implementation: structured boolean masks, NaN and infinities in hidden and in visible
// places. Needs a GPU.
#include "base/text.hpp"
#include "device.hpp"
#include "mask_patterns.hpp"
#include "support/pokes.hpp"

namespace onepass::check {
namespace {

using DeviceMasks = OnDevice<testing::Test>;

TEST_F(DeviceMasks, StructuredOnesAreRight) {
  std::vector<std::string> lines;
  for (const char* line :
       {"h2 s333x700 d{64|128|256} {bf16|fp16} mask=1hqk {|causal_bottom_right} lse",
        "h2 s700x333 d{64|128} {bf16|fp32} mask=11qk causal_top_left lse",
        "b2 h2/1 s300x1000 d128/64 bf16 mask=bhqk window=400:100 lse", "h2 s300 d{128|256} fp32 mask=1hqk lse",
        "h2 s500 d64 fp16 mask=11qk bias=fp16:11qk dropout=0.1 seed=5 lse",
        "bwd h4/2 s333x700 d{64|128|256} bf16 mask=1hqk {|causal_bottom_right|deterministic}",
        "bwd b2 h2 s700x336 d{64|192} bf16 mask=b1qk deterministic",
        "bwd h4/2 s333x300 d64 fp32 mask=1hqk deterministic",
        "bwd b2 h2 s700x336 d128 {bf16|fp16} mask=b1qk {|deterministic|dropout=0.2 seed=3|bias=bf16:1hqk}",
        "bwd h2 s700x336 d{64|128} bf16 mask=1hqk bias=bf16:1hqk grads=dq,dk,dv,dbias"})
    test::expand(line, lines);
  Findings findings;
  in_parallel(lines.size() * std::size(test::kMaskPatterns), [&](std::size_t n) {
    const std::string& line = lines[n % lines.size()];
    const test::MaskPattern& pattern = test::kMaskPatterns[n / lines.size()];
    const Problem p = parse_problem(line);
    const Distribution scores = can_judge(p, kDistributions[n % 4]) ? kDistributions[n % 4] : Distribution::normal;
    Inputs inputs = make_inputs(p, n, scores);
    test::fill_mask(inputs.tensors.bool_mask, pattern);
    inputs.changed();
    findings.judge(inputs, text(line, ", ", pattern.name));
  });
  findings.report();
}

// A key that no row sees may be anything.
TEST_F(DeviceMasks, NaNAndInfinityReachOnlyTheRowsThatSeeThem) {
  std::vector<std::string> lines;
  for (const char* line : {"h4/2 s{70|200}x300 d{64|128|256} {bf16|fp16} {|causal_bottom_right} lse",
                           "h4/2 s300x200 d{40|128} fp32 {causal_top_left|window=30:3} lse",
                           "h4/2 s150x200 d64 {bf16|fp32} mask=11qk {|scale=-0.2} lse",
                           "h4/2 s150x200 d{64|128} {bf16|fp32} causal_bottom_right scale=-0.3 lse",
                           "h4/2 s150x200 d{300|512} {bf16|fp16} {causal_bottom_right|mask=11qk} lse",
                           "h4/2 s150x200 d64 bf16 mask=b1qk window=20:2 sinks softcap=30 dropout=0.3 seed=2 lse"})
    test::expand(line, lines);
  Findings findings;
  in_parallel(lines.size() * std::size(test::kPokes), [&](std::size_t n) {
    const std::string& line = lines[n % lines.size()];
    const test::Poke& poke = test::kPokes[n / lines.size()];
    for (const Distribution distribution : {Distribution::normal, Distribution::huge}) {  // huge: weights underflow
      Inputs inputs = make_inputs(parse_problem(line), 2, distribution);
      poke.poke(inputs);
      findings.judge(inputs, text(line, ", ", poke.name, ", ", name_of(distribution)));
    }
  });
  findings.report();
}

}  // namespace
}  // namespace onepass::check
