// Whole kernels of src/cuda/jvp without a GPU, judged as on one: by the float64 oracle, with poison around everything.
#include <string>
#include <vector>

#include "base/text.hpp"
#include "cuda/jvp/jvp.hpp"
#include "cuda/jvp/sm90/jvp.hpp"
#include "on_host/boxes.hpp"
#include "on_host/jvp_kernel.hpp"
#include "on_host/whole_kernel.hpp"
#include "problem/roles.hpp"
#include "support/cpu_kernels.hpp"
#include "support/named_params.hpp"

namespace onepass {
namespace {

constexpr int kSharedBytes = 232448;  // that a block may have, on Hopper

using warps::JvpFamily;

template <class Config>
const Config& config_as(const warps::JvpKernel& kernel) {
  return *static_cast<const Config*>(kernel.config);
}
cuda::TileShape tile_of(const warps::JvpKernel& kernel) {
  switch (kernel.family) {
    case JvpFamily::plain: break;
    case JvpFamily::tiles: return cuda::jvp::tile_shape_of(config_as<cuda::jvp::JvpConfig>(kernel));
    case JvpFamily::hopper: return cuda::jvp::sm90::tile_shape_of(config_as<cuda::jvp::sm90::Config>(kernel));
  }
  return cuda::jvp::kPlainTile;
}
// The library's config for the problem is the kernel's.
template <class Config>
void expect_config(const warps::JvpKernel& kernel, const Config& chosen, int shared_bytes) {
  EXPECT_TRUE(config_as<Config>(kernel) == chosen) << "the library takes another config by now";
  EXPECT_EQ(kernel.shared_bytes, shared_bytes);
}

class EmulatedJvp : public testing::TestWithParam<const warps::JvpKernel*> {
 protected:
  static Problem problem() { return parse_problem(GetParam()->problem); }

  // The outputs' bytes. Copies in the background are early or late, threads take turns forwards or backwards.
  static std::string run(check::Inputs& inputs, bool early) {
    const warps::JvpKernel& kernel = *GetParam();
    const Problem& p = inputs.problem;
    const cuda::TileShape tile = tile_of(kernel);
    std::vector<unsigned> workspace(cuda::forward_workspace_bytes(p, tile) / 4 + 16, 0xffffffff);
    unsigned counters[2] = {0, 0};
    JvpParams params = cuda::jvp::decided_jvp(p, tile, 50 << 20);
    cuda::jvp::bind_jvp(params, inputs.tensors, workspace.data());
    params.counters = counters;
    if (p.bool_mask) {
      const cuda::MaskPlan plan = cuda::plan_mask(p, tile).at(
          inputs.tensors.bool_mask.data, reinterpret_cast<std::byte*>(workspace.data()) + cuda::mask_place(p, tile));
      warps::pack(&plan.pack);
      params.mask = plan.bits;
    }
    warps::copies_are_early = early;
    warps::backwards = early;
    inputs.poison_outputs();
    cuda::jvp::sm90::Maps maps{};
    if (kernel.family == JvpFamily::hopper)
      maps = cuda::jvp::sm90::maps_of(cuda::jvp::sm90::map_shapes(p, config_as<cuda::jvp::sm90::Config>(kernel)),
                                      inputs.tensors, boxes_of);
    kernel.run(&maps, &params, static_cast<unsigned>(kernel.config ? std::min(params.tiles, 3) : params.tiles));
    EXPECT_EQ(counters[0] + counters[1], 0u) << "the counters are not as they were found";
    std::string bytes;
    for (const Role role : {Role::out, Role::tout, Role::lse, Role::tlse}) {
      const check::Buffer& b = inputs.buffer(role);
      bytes.append(reinterpret_cast<const char*>(b.data()), b.bytes());
    }
    return bytes;
  }
};

TEST_P(EmulatedJvp, IsTheLibrarys) {
  const Problem p = problem();
  const JvpFeatures features = cuda::jvp::features_of(p);
  EXPECT_TRUE(*static_cast<const JvpFeatures*>(GetParam()->features) == features);
  if (GetParam()->family == JvpFamily::tiles) {
    const cuda::jvp::JvpConfig chosen = cuda::jvp::select_config(p, kSharedBytes).value();
    expect_config(*GetParam(), chosen, cuda::jvp::layout_of(features, chosen).total);
  } else if (GetParam()->family == JvpFamily::hopper) {
    const cuda::jvp::sm90::Config chosen = cuda::jvp::sm90::select_config(p).value();
    expect_config(*GetParam(), chosen, cuda::jvp::sm90::layout_of(features, chosen).total);
  }
}

TEST_P(EmulatedJvp, IsRight) {
  for (const check::Distribution distribution : test::kDerivativeScores) {
    check::Inputs inputs = check::make_inputs(problem(), 1, distribution);
    run(inputs, false);
    expect_right(inputs, std::string(check::name_of(distribution)));
  }
}

TEST_P(EmulatedJvp, DependsOnNoOrder) {
  check::Inputs inputs = check::make_inputs(problem(), 1);
  const std::string late = run(inputs, false);
  EXPECT_TRUE(run(inputs, true) == late);
}

// An element of each input that is not finite.
TEST_P(EmulatedJvp, NaNAndInfinityReachOnlyTheRowsThatSeeThem) {
  constexpr Role kPoked[] = {Role::q, Role::k, Role::v, Role::tq, Role::tk, Role::tv, Role::tbias};
  const char* const lines[] = {GetParam()->problem};
  test::with_one_not_finite(lines, kPoked, [](check::Inputs& inputs, const std::string& what) {
    run(inputs, false);
    expect_right(inputs, what);
  });
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedJvp, testing::ValuesIn(warps::jvp_kernels),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

}  // namespace
}  // namespace onepass
