// Runs and judges whole kernels of every family.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "check/verdict/verdict.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "on_host/mask_source.hpp"
#include "on_host/warps.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass {

inline std::string output_bytes(const check::Inputs& inputs) {
  std::string bytes;
  for (const Role role : {Role::out, Role::lse, Role::row_max, Role::entropy}) {
    const check::Buffer& b = inputs.buffer(role);
    bytes.append(reinterpret_cast<const char*>(b.data()), b.bytes());
  }
  return bytes;
}

// One call: its parameters, what they point to, and poisoned outputs. Copies in the background are early or late,
// threads take turns forwards or backwards.
class CallOnHost {
 public:
  CallOnHost(check::Inputs& inputs, const cuda::TileShape& tile, bool early)
      : inputs_(inputs), workspace_(cuda::forward_workspace_bytes(inputs.problem, tile) / 4 + 16, 0xffffffff) {
    const Problem& p = inputs.problem;
    params = cuda::decided_forward(p, tile, 50 << 20);
    cuda::bind(params, inputs.tensors, workspace_.data());
    params.counters = counters_;
    if (p.bool_mask) {
      const cuda::MaskPlan plan = cuda::plan_mask(p, tile).at(
          inputs.tensors.bool_mask.data, reinterpret_cast<std::byte*>(workspace_.data()) + cuda::mask_place(p, tile));
      warps::pack(&plan.pack);
      params.mask = plan.bits;
    }
    warps::copies_are_early = early;
    warps::backwards = early;
    inputs.poison_outputs();
  }

  unsigned grid() const { return static_cast<unsigned>(std::min(params.tiles, 3)); }
  std::string output_bytes() const {  // once the kernel has run
    EXPECT_EQ(counters_[0] + counters_[1], 0u) << "the counters are not as they were found";
    return onepass::output_bytes(inputs_);
  }

  EntropyParams params;

 private:
  check::Inputs& inputs_;
  std::vector<unsigned> workspace_;
  unsigned counters_[2] = {0, 0};
};

inline check::Verdict verdict_of(check::Inputs& inputs) {         // of what stands in the outputs
  const bool tf32 = inputs.problem.precision == Precision::tf32;  // a CPU's results are judged as those of fp32
  return check::judge(inputs, serial_executor(), tf32 ? DeviceKind::cuda : DeviceKind::cpu);
}
inline void expect_right(check::Inputs& inputs, const std::string& what) {
  const check::Verdict verdict = verdict_of(inputs);
  EXPECT_TRUE(verdict.right) << what << ": " << verdict.sentence;
}

// The kernel of a band is the same for every alignment; only its parameters differ. run(inputs): a call.
template <class Run>
void expect_right_where_the_band_moves(Problem p, std::uint64_t seed, const Run& run) {
  if (!p.band.causal && p.band.left < 0 && p.band.right < 0 && !p.alibi)
    GTEST_SKIP() << "no band and no slopes to move";
  if (p.drafts > 0) GTEST_SKIP() << "a tree is aligned bottom right";
  if ((p.band.causal || p.band.right >= 0) && band_mask(p, p.seq_q, p.seq_k).right < 0)
    GTEST_SKIP() << "single tokens have kernels without a right side";
  p.band.align = Align::offset;
  for (const std::int64_t offset : {std::int64_t{-40}, std::int64_t{45}, std::int64_t{1} << 60}) {
    p.band.offset = offset;
    if (p.alibi && offset > 1000) continue;
    check::Inputs inputs = check::make_inputs(p, seed);
    run(inputs);
    expect_right(inputs, text("offset ", offset));
  }
}

}  // namespace onepass
