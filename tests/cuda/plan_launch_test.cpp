// A launch is what its plan says: plans on a driver that is a fake, with kernels that NVRTC compiles.
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <regex>
#include <string>
#include <vector>

#include "cuda/block_mask/host.hpp"
#include "cuda/compile/cubin_cache.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/fake_launches.hpp"
#include "cuda/host/pretended.hpp"
#include "cuda/implementations.hpp"
#include "cuda/prebuild.hpp"
#include "cuda/target.hpp"
#include "onepass/onepass.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/implementation.hpp"
#include "shapes/shapes.hpp"
#include "support/backward_problem.hpp"
#include "support/sentence.hpp"

namespace onepass::cuda {
namespace {

// Bytes between q and a multiple of 256, and the head dim.
constexpr std::pair<std::uintptr_t, std::int64_t> kCalls[] = {{0, 64}, {16, 64}, {8, 64}, {2, 64},
                                                              {0, 40}, {4, 40},  {0, 72}};

// Words of block masks.
const std::string kCausal = "mask_mod={q_index >= k_index}",
                  kDocuments = "mask_mod={doc(0, q_index) == doc(0, k_index)} buffer=doc:int32:1x131072";

class PlannedLaunch : public testing::Test {
 protected:
  static FakeLaunches* fake;
  // A child compiles the kernels first, into a cache of their own: NVRTC opens the driver of a machine that has one,
  // and a process that has opened "libcuda.so.1" does not get the fake by that name.
  static void SetUpTestSuite() {
    if (!nvrtc()) return;
    setenv("ONEPASS_CACHE", ONEPASS_TEST_CACHE, 1);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      compile_kernels();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "the child that compiles has failed";
    void* const library = dlopen(ONEPASS_FAKE_DRIVER, RTLD_NOW);  // is then what "libcuda.so.1" opens
    ASSERT_NE(library, nullptr) << dlerror();
    fake = static_cast<FakeLaunches*>(dlsym(library, "fake_launches"));
  }
  static void compile_kernels() {
    for (const auto& [offset, d] : kCalls) {
      for (const TargetKernel& kernel : kernels_on("sm_90", problem_of(tensors(offset, d), {})))
        cubin_for(kernel.program);
    }
    for (const TargetKernel& kernel : kernels_on("sm_90", problem_of(step(), step_options())))
      if (kernel.program.entry != "append_kv") cubin_for(kernel.program);
    for (const std::string& mask : {kCausal, kDocuments})
      for (const KernelProgram& program : block_mask_programs(parse_problem("fwd s8 d8 " + mask), "sm_90"))
        cubin_for(program);
  }
  void SetUp() override {
    if (std::string why; !nvrtc(&why)) GTEST_SKIP() << why;
    ASSERT_NE(fake, nullptr);
    fake->result = 0;
  }

  // [2, 4, 300, 64] bf16 in no real memory; q begins `offset` bytes behind a multiple of 256.
  static AttentionTensors tensors(std::uintptr_t offset, std::int64_t d = 64) {
    const Device gpu{DeviceKind::cuda, 0};
    std::uintptr_t next = 1 << 20;
    const auto at = [&](std::uintptr_t from) { return reinterpret_cast<void*>((next += 1 << 24) + from); };
    const auto tensor = [&](std::uintptr_t from) { return Tensor(at(from), DType::bf16, {2, 4, 300, d}, gpu); };
    return {.q = tensor(offset), .k = tensor(0), .v = tensor(0), .out = tensor(0)};
  }
  // A serving engine's step: 500 tokens of four sequences, 8 query heads and 2 heads of a cache in pages.
  static AttentionTensors step() {
    const Device gpu{DeviceKind::cuda, 0};
    std::uintptr_t next = 1 << 20;
    const auto tensor = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
      return Tensor(reinterpret_cast<void*>(next += 1 << 24), dtype, shape, gpu);
    };
    return {.q = tensor(DType::bf16, {500, 8, 64}),
            .k = tensor(DType::bf16, {99, 16, 2, 64}),
            .v = tensor(DType::bf16, {99, 16, 2, 64}),
            .out = tensor(DType::bf16, {500, 8, 64}),
            .cu_seqlens_q = tensor(DType::i32, {5}),
            .seqused_k = tensor(DType::i32, {4}),
            .page_table = tensor(DType::i32, {4, 64})};
  }
  static Attention step_options() {
    Attention a;
    a.band.causal = true;
    return a;
  }
  static int number_before(const std::string& text, const std::string& words) {
    std::smatch found;
    EXPECT_TRUE(std::regex_search(text, found, std::regex("([0-9]+) " + words))) << text << " says no " << words;
    return found.empty() ? -1 : std::stoi(found[1]);
  }
  static std::span<std::byte> workspace(const Plan& plan) {
    return {reinterpret_cast<std::byte*>(std::uintptr_t{1} << 30), plan.workspace_bytes()};
  }
};
FakeLaunches* PlannedLaunch::fake = nullptr;

TEST_F(PlannedLaunch, AStepLaunchesAKernelForEachRangeOfRowsSideBySide) {
  const Plan plan = make_plan(problem_of(step(), step_options()));
  EXPECT_EQ(plan.name(), "cuda.mixed");
  const std::string said = plan.describe();
  for (const char* rows : {"sequences of 1 to 4 queries: cuda.decode", "sequences of 5 to 8 queries: cuda.decode",
                           "sequences of 9 to 16 queries: cuda.decode", "sequences of 17 or more queries: cuda.sm90"})
    EXPECT_NE(said.find(rows), said.npos) << rows << " is not in " << said;
  const int before = fake->launches;
  run(plan, step(), {.workspace = workspace(plan)});
  EXPECT_EQ(fake->launches, before + 4);
  EXPECT_EQ(fake->last.attribute_count, 1u) << "the prefill kernel does not start beside the others";
}

TEST_F(PlannedLaunch, IsWhatTheDescriptionSays) {
  for (const auto& [offset, d] : kCalls) {
    if (d == 72) continue;  // LoadsNothingOncePrepared's
    const Tensors t = tensors(offset, d);
    const Plan plan = make_plan(problem_of(t, {}));
    EXPECT_EQ(plan.name(), offset % 16 == 0 ? "cuda.sm90" : "cuda.sm80") << offset;
    const int before = fake->launches;
    run(plan, t, {.workspace = workspace(plan)});
    ASSERT_EQ(fake->launches, before + 1);
    const std::string said = plan.describe();
    EXPECT_EQ(static_cast<int>(fake->last.shared_bytes), number_before(said, "bytes of shared memory"));
    const bool hopper = plan.name() == "cuda.sm90";
    EXPECT_EQ(static_cast<int>(fake->last.block_x),
              hopper ? 128 * (number_before(said, "consumer warpgroups") + 1) : 32 * number_before(said, "warps"));
    if (!hopper) {
      EXPECT_NE(said.find(text(offset, "-byte copies")), said.npos) << said;
    }
    EXPECT_NE(explain(problem_of(plan)).find(std::string("* ") + std::string(plan.name()) + ": " + said),
              std::string::npos);
  }
}

TEST_F(PlannedLaunch, TakesTensorsThatAreBetterAligned) {
  const Tensors loose = tensors(8), aligned = tensors(0);
  const Plan plan = make_plan(problem_of(loose, {})), strict = make_plan(problem_of(aligned, {}));
  const int before = fake->launches;
  run(plan, aligned, {.workspace = workspace(plan)});
  EXPECT_EQ(fake->launches, before + 1);
  test::expect_refused([&] { run(strict, loose, {.workspace = workspace(strict)}); }, "align=q:8",
                       ErrorCode::bad_shape);
  EXPECT_EQ(fake->launches, before + 1);
}

// Levels of buffers take a launch for groups of 16 elements, one for what is above, one for whole buffers of many rows.
TEST_F(PlannedLaunch, ABlockMaskIsPutOnTheStream) {
  const Device gpu{DeviceKind::cuda, 0};
  const auto at = [](std::uintptr_t n) { return reinterpret_cast<void*>(n << 24); };
  const auto launches = [&](const std::string& words, std::int64_t rows, std::int64_t n, std::int64_t tiles) {
    const Problem p = parse_problem("fwd s8 d8 " + words);
    std::vector<NamedTensor> buffers;
    for (const ModBuffer& b : p.mod_buffers) buffers.push_back({b.name, Tensor(at(1), b.dtype, {rows, n}, gpu)});
    const int before = fake->launches;
    block_mask_states(p.mask_mod, buffers, {.seq_q = tiles * 128, .seq_k = tiles * 128},
                      Tensor(at(2), DType::i32, {1, 1, tiles, tiles}, gpu), false, {.stream = at(3)});
    if (tiles > 0) {
      EXPECT_EQ(fake->last.block_x, static_cast<unsigned>(kBlockMaskThreads));
      EXPECT_EQ(fake->last.stream, at(3));
    }
    return fake->launches - before;
  };
  EXPECT_EQ(launches(kCausal, 0, 0, 1024), 1);
  EXPECT_EQ(fake->last.grid_x, 8u * 132);  // of 1024 x 32 strips of 32 tiles
  EXPECT_EQ(launches(kCausal, 0, 0, 3), 1);
  EXPECT_EQ(fake->last.grid_x, 1u);
  EXPECT_EQ(launches(kCausal, 0, 0, 0), 0);
  EXPECT_EQ(launches(kDocuments, 1, 131072, 1024), 3);
  EXPECT_EQ(launches(kDocuments, 1, 16, 1024), 2);  // a group is all there is
  EXPECT_EQ(launches(kDocuments, 100, 200, 1024), 4);
  EXPECT_EQ(launches(kDocuments, 1, 3 << 20, 16), 3);
  EXPECT_EQ(launches(kDocuments, 65, 1 << 15, 16), 3);  // without groups: rows, the whole, tiles

  const std::vector<NamedTensor> buffers = {{"doc", Tensor(at(1), DType::i32, {1, 131072}, gpu)}};
  const BlockMaskShape shape{.seq_q = 128, .seq_k = 128};
  const std::size_t bytes = block_mask_workspace_bytes(buffers, shape);
  EXPECT_NEAR(static_cast<double>(bytes), 3.0 * 131072, 200);
  const std::vector<NamedTensor> many_rows = {{"doc", Tensor(at(1), DType::i32, {128, 32768}, gpu)}};
  EXPECT_EQ(block_mask_workspace_bytes(many_rows, shape), 129 * sizeof(interval::Bounds));
  constexpr std::int64_t kMany = 1 << 30;  // tiles beyond int64
  EXPECT_NEAR(static_cast<double>(block_mask_workspace_bytes(many_rows, {kMany, kMany, kMany, kMany, 1, 1})),
              3.0 * 128 * 32768, 20000);
  const auto run = [&](std::size_t size, std::uintptr_t beyond) {
    block_mask_states("doc(0, q_index) == doc(0, k_index)", buffers, shape,
                      Tensor(at(2), DType::i32, {1, 1, 1, 1}, gpu), false,
                      {.workspace = {static_cast<std::byte*>(at(4)) + beyond, size}});
  };
  run(bytes, 0);
  EXPECT_THROW(run(bytes - 1, 0), Error);
  EXPECT_THROW(run(bytes, 32), Error);
}

TEST_F(PlannedLaunch, LoadsNothingOncePrepared) {
  Tensors t = tensors(0, 72);  // no other test's kernel
  const Plan plan = make_plan(problem_of(t, {}));
  const int before = fake->modules;
  prepare(plan);
  EXPECT_EQ(fake->modules, before + 1);
  run(plan, t, {.workspace = workspace(plan)});
  EXPECT_EQ(fake->modules, before + 1);
}

TEST_F(PlannedLaunch, FailuresOfTheDeviceHaveCodesOfTheirOwn) {
  const Tensors t = tensors(0);
  const Plan plan = make_plan(problem_of(t, {}));
  for (const auto& [result, code] : {std::pair{719, ErrorCode::device_failure}, {2, ErrorCode::out_of_memory}}) {
    fake->result = result;
    test::expect_refused([&] { run(plan, t, {.workspace = workspace(plan)}); }, "cuLaunchKernelEx failed", code);
  }
}

// On an H200, the plan of an RTX 4090: its tiles, and machine code that the H200 runs.
TEST_F(PlannedLaunch, AnotherGpusPlansAreCompiledForTheOneAtHand) {
  const auto plan = [] { return make_plan(problem_of(tensors(0), {})); };
  EXPECT_EQ(plan().name(), "cuda.sm90");
  {
    const PretendedDevice pretended(as_target(device_facts(0), "sm_89"));
    EXPECT_EQ(device_facts(0).shared_bytes, 101376);
    EXPECT_EQ(arch_of(device_facts(0)), "sm_90");
    EXPECT_EQ(plan().name(), "cuda.sm80");
    EXPECT_LE(number_before(plan().describe(), "bytes of shared memory"), 101376);
  }
  EXPECT_EQ(plan().name(), "cuda.sm90");
  for (const auto& [device, target, sentence] :
       {std::tuple{1, "sm_90", "kernels for sm_90 do not run on A100 (sm_80)"},
        std::tuple{0, "sm_120", "kernels for sm_120 do not run on H200 (sm_90)"}})
    EXPECT_EQ(test::sentence_of([device = device, target = target] { as_target(device_facts(device), target); }),
              sentence);
}

// Every problem of the lists, on whatever takes it: sizes of 0 among them. Nothing is compiled.
TEST_F(PlannedLaunch, EveryLineOfTheListsIsPlannedOrRefused) {
  int planned = 0;
  const auto plan = [&](Problem p) {
    p.device = {DeviceKind::cuda, 0};
    for (const Implementation* row : implementations()) {
      const Decision d = decide(*row, p);
      EXPECT_NE(d ? d.state->describe() : d.refusal, "") << row->name << ' ' << to_string(p);
      planned += d ? 1 : 0;
    }
  };
  for (const char* list :
       {"sizes.txt", "long.txt", "decoding.txt", "dims.txt", "heads.txt", "features.txt", "layouts.txt", "cache.txt",
        "merge.txt", "mods.txt", "block_masks.txt", "peers.txt", "quantize.txt"}) {
    for (const std::string& line : test::shapes(list)) {
      const Problem p = parse_problem(line);
      plan(p);
      if (p.op == kForward && !p.seqused && !p.paged() && !p.v_in_k && !p.kv_dtype)
        plan(test::backward_of(p, false, false));
    }
  }
  EXPECT_GT(planned, 3000);
}

}  // namespace
}  // namespace onepass::cuda
