// The appending kernel without a GPU: the device source runs on the host, against a plain loop in float64 and, bit for
// bit, against the CPU.
#include <gtest/gtest.h>

#include "cuda/append/host.hpp"
#include "on_host/append_source.hpp"
#include "support/append_specs.hpp"

namespace onepass::check {
namespace {

using warps::AppendSource;

const AppendSource* const kSources[] = {
    &warps::append_f32_halves,
    &warps::append_f32_interleaved_packed_paged,
    &warps::append_bf16_halves_packed_paged,
    &warps::append_f16_interleaved_packed,
    &warps::append_bf16_interleaved_paged,
    &warps::append_bf16_one_by_one,
    &warps::append_f16_one_by_one,
    &warps::append_f32_one_by_one,
    &warps::append_f16_copied,
    &warps::append_bf16_fp8,
    &warps::append_f16_fp8_one_by_one,
    &warps::append_bf16_slots,
    &warps::append_f16_slots_copied,
    &warps::append_f16_slots_fp8,
    &warps::append_f32_slots_one_by_one,
    &warps::append_f32_f16_halves_paged,
};

// The launch of a plan on a device.
struct Planned {
  cuda::AppendPlan plan;
  AppendConfig config;
  AppendParams params;
};
Planned plan_of(const AppendCase& c, const Problem& problem) {
  const cuda::AppendPlan plan = cuda::select_append(problem).value();
  return {plan, plan.config, cuda::append_params(problem, plan, as_tensors(c.tensors))};
}
Planned plan_of(const AppendCase& c) { return plan_of(c, problem_of(c.tensors, c.spec.interleaved)); }
const AppendSource* source_of(const Planned& plan) {
  for (const AppendSource* source : kSources)
    if (*static_cast<const AppendConfig*>(source->config) == plan.config) return source;
  return nullptr;
}

TEST(EmulatedAppend, IsThePlainLoopAndTheCpusBits) {
  std::vector<int> runs(std::size(kSources));
  for (const AppendSpec& spec : append_specs()) {
    AppendCase c(spec), on_cpu(spec);
    const Planned plan = plan_of(c);
    const AppendSource* source = source_of(plan);
    if (!source || plan.params.all_items == 0) continue;
    const long long blocks = (plan.params.all_items + kAppendThreads - 1) / kAppendThreads;
    // Fewer blocks than there is work for: each goes on with the next.
    source->run(&plan.params, static_cast<unsigned>(std::max<long long>(1, std::min<long long>(blocks - 1, 100))));
    append_kv(on_cpu.tensors, spec.interleaved);
    EXPECT_EQ(c.output_bytes(), on_cpu.output_bytes()) << spec.name;
    c.expect_right();
    ++runs[static_cast<std::size_t>(std::ranges::find(kSources, source) - kSources)];
  }
  for (std::size_t i = 0; i < runs.size(); ++i) EXPECT_GT(runs[i], 0) << i;
}

// A token that the CPU refuses is known only to the device: it is left out, and all others are written.
TEST(EmulatedAppend, LeavesOutWhatIsOutOfRange) {
  const AppendSpec spec = out_of_range_spec(true);
  AppendCase c(spec);
  Planned plan = plan_of(c);
  const AppendSource* source = source_of(plan);
  ASSERT_NE(source, nullptr);
  put_out_of_range(c);
  source->run(&plan.params, 7);
  c.expect_right();

  AppendCase d(spec);  // fewer positions than keys: a sequence ends within
  plan = plan_of(d);
  plan.params.positions = 32;
  source->run(&plan.params, 7);
  d.spec.lengths = {2, 2, 1, 3, 0, 4};
  d.expect_right();
}

TEST(EmulatedAppend, LeavesOutSlotsOutOfRange) {
  AppendCase c(slots_out_of_range_spec(true));
  const Planned plan = plan_of(c);
  const AppendSource* source = source_of(plan);
  ASSERT_NE(source, nullptr);
  put_slots_out_of_range(c);
  source->run(&plan.params, 3);
  c.expect_right();
}

TEST(EmulatedAppend, PiecesNeedAlignedRows) {
  const AppendSpec spec{.name = "aligned",
                        .dtype = DType::bf16,
                        .heads_q = 2,
                        .dim_qk = 64,
                        .dim_v = 16,
                        .rotary_dim = 32,
                        .used = {1},
                        .lengths = {1}};
  const auto at_once = [](AppendCase& c) { return plan_of(c).config.at_once; };
  AppendCase c(spec);
  EXPECT_EQ(at_once(c), 8);
  const auto with = [&](auto change) {
    AppendSpec other = spec;
    change(other);
    AppendCase changed(other);
    return at_once(changed);
  };
  EXPECT_EQ(with([](AppendSpec& s) { s.pad = 8; }), 8);
  EXPECT_EQ(with([](AppendSpec& s) { s.pad = 4; }), 1);
  EXPECT_EQ(with([](AppendSpec& s) { s.dim_v = 12; }), 1);
  EXPECT_EQ(with([](AppendSpec& s) { s.rotary_dim = 8; }), 1);  // halves of 4
  EXPECT_EQ(with([](AppendSpec& s) { s.rotary_dim = 8, s.interleaved = true; }), 8);
  AppendCase shifted(spec);
  Problem loose = problem_of(shifted.tensors, spec.interleaved);
  loose.alignment[static_cast<std::size_t>(Role::k_cache)] = 2;
  EXPECT_EQ(plan_of(shifted, loose).config.at_once, 1);
  AppendCase columns(spec);
  columns.tensors.cos.stride[1] = 2, columns.tensors.cos.shape[0] = columns.tensors.sin.shape[0] = 20;
  EXPECT_EQ(at_once(columns), 1);
}

}  // namespace
}  // namespace onepass::check
