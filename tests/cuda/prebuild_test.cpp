// Kernels compiled ahead for a device that is not here, and a machine that runs from them without a compiler.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cuda/compile/cubin_cache.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/prebuild.hpp"
#include "onepass/error.hpp"
#include "problem/block_mask.hpp"
#include "problem/problem.hpp"
#include "support/sentence.hpp"

namespace onepass::cuda {
namespace {

namespace fs = std::filesystem;

std::string key(const std::string& line, const char* arch = "sm_90") {
  return key_of(kernels_on(arch, parse_problem(line)).back().program);
}

TEST(Prebuild, NamesTheTargetsItKnows) {
  EXPECT_EQ(typical_device("sm_90").major, 9);
  EXPECT_EQ(typical_device("sm_90a").shared_bytes, 232448);
  EXPECT_EQ(typical_device("8.9").chip_minor, 9);
  EXPECT_EQ(typical_device("10.3").shared_bytes, 232448);
  for (const char* wrong : {"sm_70", "90", "", "sm_90aa", "7.0", "9", "9.0a"}) {
    const std::string said = test::sentence_of([&] { typical_device(wrong); });
    EXPECT_EQ(said.find("arch must be one of sm_"), 0u) << said;
    EXPECT_NE(said.find("sm_90"), said.npos) << said;
    EXPECT_NE(said.find("(got '" + std::string(wrong) + "')"), said.npos) << said;
  }
}

// docs/guides/cuda.md offers what there is, in one sentence: "`--arch` is the GPU's compute capability: `sm_80`, ...,
// `sm_120`."
TEST(Prebuild, TheDocumentOffersTheTargetsItKnows) {
  std::ifstream file(ONEPASS_CUDA_DOCS);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::size_t from = page.find("`--arch` is the GPU's compute capability");
  ASSERT_NE(from, page.npos);
  std::string offered;
  const std::string line = page.substr(from, page.find('.', from) - from);
  for (std::size_t at = line.find("`sm_"); at != line.npos; at = line.find("`sm_", at + 1))
    offered += (offered.empty() ? "" : ", ") + line.substr(at + 1, line.find('`', at + 1) - at - 1);
  EXPECT_EQ(test::sentence_of([] { typical_device("none"); }), "arch must be one of " + offered + " (got 'none')");
}

TEST(Prebuild, AKernelServesEverySizeAndLayoutOfItsKind) {
  const std::string one = key("fwd b1 h1 s4096 d128 bf16 causal_bottom_right");
  EXPECT_EQ(key("fwd b7 h6/2 s5000x300 d128 bf16 causal_top_left scale=2 lse layout=bshd cuda:1"), one);
  EXPECT_EQ(key("fwd b1 h1 s4096 d128 bf16 causal_bottom_right", "sm_90a"), one);
  for (const char* other :
       {"fwd b1 h1 s4096 d128 bf16", "fwd b1 h1 s4096 d128 fp16 causal_bottom_right",
        "fwd b1 h1 s4096 d64 bf16 causal_bottom_right", "fwd h1 d128 bf16 varlen=4096 causal_bottom_right"})
    EXPECT_NE(key(other), one) << other;
}

TEST(Prebuild, TakesTheFirstImplementationOfTheTarget) {
  const auto kernel = [](const char* arch, const std::string& line) {
    return kernels_on(arch, parse_problem(line)).back();
  };
  EXPECT_STREQ(kernel("sm_90", "fwd h1 s128 d64 bf16").implementation, "cuda.sm90");
  EXPECT_STREQ(kernel("sm_90", "fwd h32/8 s1x900 d64 bf16").implementation, "cuda.decode");
  EXPECT_EQ(kernel("sm_90", "fwd h1 s128 d64 bf16").program.arch, "sm_90a");
  EXPECT_STREQ(kernel("sm_90", "fwd h128/1 s1x900 d576/512 bf16 v_in_k").implementation, "cuda.mla");
  EXPECT_STREQ(kernel("sm_86", "fwd h1 s128 d64 bf16").implementation, "cuda.sm80");
  EXPECT_EQ(kernel("sm_86", "fwd h1 s128 d64 bf16").program.arch, "sm_86");
  EXPECT_STREQ(kernel("sm_90", "fwd h1 s128 d33 bf16").implementation, "cuda.sm80");  // strides TMA cannot step
  EXPECT_NE(key("fwd h1 s128 d128 bf16", "sm_86"), key("fwd h1 s128 d128 bf16", "sm_80"));
}

TEST(Prebuild, ABackwardIsSeveralKernels) {
  const auto count = [](const char* arch, const std::string& line) {
    return kernels_on(arch, parse_problem(line)).size();
  };
  EXPECT_EQ(count("sm_90", "bwd h1 s64 d64 bf16"), 3u);
  EXPECT_EQ(count("sm_90", "bwd h32 s4096 d64 bf16"), 4u);  // for values that are not finite, too
  EXPECT_EQ(count("sm_90", "bwd h1 s64 d64 bf16 mask=11qk sinks grads=dv,dsinks"), 5u);  // the post kernel repairs dV
  const TargetKernel last = kernels_on("sm_90", parse_problem("bwd h1 s64 d256 bf16")).back();
  EXPECT_STREQ(last.implementation, "cuda.sm90_backward");
  EXPECT_EQ(last.program.file, "cuda/sm90/backward/consumer/split.cuh");
  EXPECT_STREQ(kernels_on("sm_90", parse_problem("bwd h1 s64 d33 bf16")).back().implementation, "cuda.sm80_backward");
}

TEST(Prebuild, AMergeIsOneKernelForAllSizes) {
  const auto kernels = kernels_on("sm_90", parse_problem("merge n3 b2 h8 s1 d128 bf16 lse"));
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_STREQ(kernels[0].implementation, "cuda.merge");
  EXPECT_EQ(key("merge n48 h1 s999 d128 bf16"), key_of(kernels[0].program));
  EXPECT_NE(key("merge n49 h1 s999 d128 bf16"), key_of(kernels[0].program));
  EXPECT_NE(test::sentence_of([] {
              key("merge n257 s1 d8");
            }).find("cuda.merge: supports at most 256 partial results (got 257)"),
            std::string::npos);
}

TEST(Prebuild, ACacheIsAlsoWritten) {
  const auto count = [](const std::string& line) {  // those of append_kv, those that attend
    std::pair<int, int> n;
    for (const TargetKernel& k : kernels_on("sm_90", parse_problem(line)))
      ++(k.program.entry == "append_kv" ? n.first : n.second);
    return n;
  };
  EXPECT_EQ(count("fwd b4 h32/8 s1x900 d128 bf16 kv=paged:16 seqused"), std::pair(10, 1));
  EXPECT_EQ(count("fwd b4 h32/8 s1x900 d128 fp32 seqused"), std::pair(3, 1));
  EXPECT_EQ(count("fwd b4 h128/1 s1x900 d576/512 bf16 v_in_k kv=paged:16"), std::pair(10, 3));
  EXPECT_EQ(count("fwd b4 h32/8 s1x900 d128 bf16"), std::pair(0, 2));  // for equal parts, for others
}

TEST(Prebuild, ABlockMaskIsAlsoBuilt) {
  const auto entries = [](const std::string& line) {  // of block masks
    std::vector<std::string> names;
    for (const TargetKernel& k : kernels_on("sm_90", parse_problem(line)))
      if (std::string_view(k.implementation) == "block_mask") names.push_back(k.program.entry);
    return names;
  };
  using Names = std::vector<std::string>;
  const std::string call = "fwd h1 s512 d64 bf16", causal = " mask_mod={q_index >= k_index}",
                    documents = " mask_mod={doc[q_index] == doc[k_index]} buffer=doc:int32:512";
  EXPECT_EQ(entries(call + causal), Names{});
  EXPECT_EQ(entries(call + " block_mask=11qk"), Names{});
  EXPECT_EQ(entries(call + " block_mask=11qk" + causal), Names{"mask_tiles"});
  EXPECT_EQ(entries(call + " block_mask=11qk" + documents), (Names{"buffer_levels", "mask_tiles"}));
  const std::string scores = " score_mod={score + t[k_index]}", bias = " buffer=t:fp32:512";
  EXPECT_EQ(entries(call + " block_mask=11qk" + scores + causal + bias), Names{"mask_tiles"});
  EXPECT_EQ(key(call + " block_mask=11qk" + scores + documents + bias), key(call + " block_mask=11qk" + documents));
  EXPECT_EQ(key("bwd b2 h4 s100 d128 fp32 block_mask=b1qk" + causal), key(call + " block_mask=11qk" + causal));
}

// The host does not know the lengths of packed sequences on a device, so they must not decide what is compiled.
TEST(Prebuild, PackedSequencesAreTakenAsTheDeviceSeesThem) {
  EXPECT_EQ(key("fwd h1 d64 bf16 causal_bottom_right varlen=100x100"),
            key("fwd h1 d64 bf16 causal_bottom_right varlen=10000"));
}

TEST(Prebuild, SaysWhyNoKernelComputesAProblem) {
  const std::string said = test::sentence_of([] { key("fwd b600000000 h1 s1 d64 bf16"); });
  EXPECT_EQ(said.find("no kernel supports \"fwd b600000000 h1 s1 d64 bf16 cuda:0\" on sm_90; cuda.mla: "), 0u) << said;
  for (const char* name : {"; cuda.sm90: ", "; cuda.sm80: ", "; cuda.plain: "})
    EXPECT_NE(said.find(name), said.npos) << said;
}

class Prebuilt : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "onepass-prebuilt-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory = pattern;
    setenv("ONEPASS_PREBUILT", (directory / "prebuilt").c_str(), 1);
    setenv("ONEPASS_CACHE", (directory / "cache").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("ONEPASS_PREBUILT");
    unsetenv("ONEPASS_CACHE");
    fs::remove_all(directory);
  }
  fs::path directory;
  // Compiles, if at all, in no time: what is asked is where a kernel comes from.
  const KernelProgram program{"cuda/device/types.cuh", "none", "// nothing", "sm_90", ""};
};

TEST_F(Prebuilt, IsTakenWhateverCompilerMadeItAndNothingIsCompiled) {
  ASSERT_TRUE(write_cubin(directory / "prebuilt", key_of(program), "99.9", {"not compiled here", "log"}));
  EXPECT_EQ(cubin_for(program).bytes, "not compiled here");
  EXPECT_FALSE(fs::exists(directory / "cache"));
}

TEST_F(Prebuilt, IsLeftAloneIfItIsDamaged) {
  ASSERT_TRUE(write_cubin(directory / "prebuilt", key_of(program), "99.9", {"not compiled here", "log"}));
  std::ofstream(directory / "prebuilt" / (key_of(program) + ".cubin"), std::ios::app) << "x";
  if (compiler_version().empty()) {
    const std::string said = test::sentence_of([&] { cubin_for(program); });
    EXPECT_NE(said.find("is not in the cache and cannot be compiled: "), said.npos) << said;
    EXPECT_NE(said.find(key_of(program) + ".cubin is not used: it is damaged"), said.npos) << said;
    return;
  }
  EXPECT_NE(cubin_for(program).bytes, "not compiled here");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory / "prebuilt"), fs::directory_iterator()), 1);  // read only
  EXPECT_TRUE(fs::exists(directory / "cache" / (key_of(program) + ".cubin")));
}

TEST(Prebuild, AMaskIsPackedByAKernelOfItsOwn) {
  for (const char* arch : {"sm_90", "sm_80"}) {
    const auto kernels = kernels_on(arch, parse_problem("fwd s64 d64 bf16 mask=11qk"));
    ASSERT_EQ(kernels.size(), 2u);
    EXPECT_EQ(kernels[0].program.entry, "pack_mask");
    EXPECT_EQ(kernels[0].program.arch, arch);
  }
}

// The text that a block mask and a mask_mod become, and kernels of it that NVRTC reads.
TEST(Prebuild, ABlockMaskIsABufferOfTheMaskMod) {
  const std::string words = " mask_tile_q=64 mask_tile_k=96 mask_mod={(k_index + head) % 3 != batch}";
  for (const char* const op : {"fwd", "bwd"}) {
    const std::string call = std::string(op) + " b2 h4/2 s300x400 d64 bf16";
    const Problem p = parse_problem(call + " block_mask=b1qk" + words);
    const Problem masked = without_block_mask(p);
    EXPECT_EQ(masked.mask_mod,
              "block_mask[batch, 0, q_index / 64, k_index / 96] != 0 && "
              "(block_mask[batch, 0, q_index / 64, k_index / 96] == 2 || ((k_index + head) % 3 != batch))");
    EXPECT_EQ(to_string(masked), call + " mask_mod={" + masked.mask_mod + "} buffer=block_mask:int32:2x1x5x5");
    const auto kernels = kernels_on("sm_90", p), of_text = kernels_on("sm_90", masked);
    ASSERT_EQ(kernels.size(), of_text.size() + 1);
    for (std::size_t i = 0; i < of_text.size(); ++i) EXPECT_EQ(key_of(kernels[i].program), key_of(of_text[i].program));
    EXPECT_EQ(kernels.back().program.entry, "mask_tiles");
    ASSERT_EQ(kernels[0].program.entry, "pack_mod");
    if (nvrtc()) {
      EXPECT_FALSE(compile(kernels[0].program).bytes.empty());
    }
  }
  Problem named = parse_problem("fwd s8 d8 block_mask=1111 mask_mod={block_mask[0] == 1} buffer=block_mask:int32:3");
  EXPECT_EQ(without_block_mask(named).mask_mod,
            "block_mask_[0, 0, 0, 0] != 0 && (block_mask_[0, 0, 0, 0] == 2 || (block_mask[0] == 1))");
}

}  // namespace
}  // namespace onepass::cuda
