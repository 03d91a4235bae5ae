// Whole kernels of src/cuda/backward_plain and src/cuda/backward_jvp without a GPU, judged as on one: by the float64
// oracle, with poison around everything.
#include <string>
#include <vector>

#include "base/text.hpp"
#include "cuda/backward_jvp/backward_jvp.hpp"
#include "cuda/backward_jvp/sm90/backward_jvp.hpp"
#include "cuda/backward_plain/backward_plain.hpp"
#include "on_host/backwardplain_kernel.hpp"
#include "on_host/boxes.hpp"
#include "on_host/shared_bytes.hpp"
#include "on_host/whole_kernel.hpp"
#include "problem/roles.hpp"
#include "support/cpu_kernels.hpp"
#include "support/named_params.hpp"

namespace onepass {
namespace {

namespace plain = cuda::backward_plain;
namespace second = cuda::backward_jvp;
namespace hopper = cuda::backward_jvp::sm90;

class EmulatedPlainBackward : public testing::TestWithParam<const warps::PlainBackwardKernel*> {
 protected:
  static Problem problem() { return parse_problem(GetParam()->problem); }
  static warps::SecondFamily family() { return GetParam()->family; }
  // The library's plan.
  static plain::Plan selected(const Problem& p) {
    switch (family()) {
      case warps::SecondFamily::none: break;
      case warps::SecondFamily::tiles: return second::select_plan(p, shared_bytes(GetParam()->name)).value().plain;
      case warps::SecondFamily::hopper: return hopper::select_plan(p).value().plain;
    }
    return plain::select_plan(p).value();
  }

  // The outputs' bytes. Threads take turns forwards or backwards, copies in the background are late or early.
  static std::string run(check::Inputs& inputs, bool backwards) {
    const Problem& p = inputs.problem;
    const plain::Plan plan = selected(p);
    const int held = GetParam()->held;
    const plain::Places places = plain::places_of(p, plan);
    std::vector<unsigned> workspace(places.total / 4 + 16, 0xffffffff);
    PlainBackwardParams params =
        held > 0 ? second::decided_params(p, plan, held, 50 << 20) : plain::decided_params(p, plan, 50 << 20);
    plain::bind(params, p.op->tangents ? with_derivatives_as_gradients(inputs.tensors) : inputs.tensors,
                workspace.data(), places);
    if (p.bool_mask) {
      const cuda::MaskPlan mask =
          cuda::plan_mask(p, plain::mask_tile_of(plan.shape))
              .at(inputs.tensors.bool_mask.data, reinterpret_cast<std::byte*>(workspace.data()) + places.mask);
      warps::pack(&mask.pack);
      params.mask = mask.bits;
    }
    warps::backwards = warps::copies_are_early = backwards;
    inputs.poison_outputs();
    for (const plain::Part part : plain::kParts) {
      GetParam()->run[static_cast<int>(part)](&params, static_cast<unsigned>(plain::blocks_of(part, params, plan)));
      if (part != plain::Part::stats || held == 0) continue;
      for (const bool keys : {false, true}) {
        const std::int64_t blocks = second::blocks_of(keys, params, plan);
        hopper::Maps maps{};
        if (family() == warps::SecondFamily::hopper && blocks > 0)
          maps = hopper::maps_of(hopper::map_shapes(keys, p, *static_cast<const hopper::Config*>(GetParam()->config)),
                                 inputs.tensors, boxes_of);
        GetParam()->run_second[keys](&maps, &params, static_cast<unsigned>(blocks));
      }
    }
    std::string bytes;
    for (const RoleRow& row : kRoleTable) {
      if (!is_asked(p.gradients, row.role)) continue;
      const check::Buffer& b = inputs.buffer(row.role);
      bytes.append(reinterpret_cast<const char*>(b.data()), b.bytes());
    }
    return bytes;
  }
};

TEST_P(EmulatedPlainBackward, IsTheLibrarys) {
  const Problem p = problem();
  const plain::Plan plan = selected(p);
  const void* const config = GetParam()->config;
  EXPECT_TRUE(*static_cast<const PlainBackwardFeatures*>(GetParam()->features) == plan.features);
  EXPECT_TRUE(*static_cast<const BackwardShape*>(GetParam()->shape) == plan.shape);
  if (family() == warps::SecondFamily::tiles) {
    EXPECT_TRUE(*static_cast<const second::SecondConfig*>(config) ==
                second::select_plan(p, shared_bytes(GetParam()->name))->config);
  } else if (family() == warps::SecondFamily::hopper) {
    EXPECT_TRUE(*static_cast<const hopper::Config*>(config) == hopper::select_plan(p)->config);
  }
}

TEST_P(EmulatedPlainBackward, IsRight) {
  for (const check::Distribution distribution : test::kDerivativeScores) {
    check::Inputs inputs = check::make_inputs(problem(), 1, distribution);
    run(inputs, false);
    expect_right(inputs, std::string(check::name_of(distribution)));
  }
}

TEST_P(EmulatedPlainBackward, DependsOnNoOrder) {
  check::Inputs inputs = check::make_inputs(problem(), 1);
  const std::string forwards = run(inputs, false);
  EXPECT_TRUE(run(inputs, true) == forwards);
}

// An element of each input that is not finite.
TEST_P(EmulatedPlainBackward, NaNAndInfinityReachOnlyWhatSeesThem) {
  constexpr Role kPoked[] = {Role::q,  Role::k,  Role::v,     Role::dout,  Role::tq,
                             Role::tk, Role::tv, Role::tdout, Role::tbias, Role::dentropy};
  const char* const lines[] = {GetParam()->problem};
  test::with_one_not_finite(lines, kPoked, [](check::Inputs& inputs, const std::string& what) {
    run(inputs, false);
    expect_right(inputs, what);
  });
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedPlainBackward, testing::ValuesIn(warps::plain_backward_kernels),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

}  // namespace
}  // namespace onepass
