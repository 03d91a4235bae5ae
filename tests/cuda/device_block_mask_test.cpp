// Block masks that are built on a device have the tiles of those that are built on the CPU. Needs a GPU.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device.hpp"
#include "onepass/block_mask.hpp"
#include "support/mask_buffers.hpp"
#include "support/random_mask.hpp"

namespace onepass::check {
namespace {

using cuda::check_cuda, cuda::DevicePtr, cuda::Stream;
using DeviceBlockMask = OnDevice<testing::Test>;

// Copies of buffers on the first device.
class Copies {
 public:
  explicit Copies(const std::vector<NamedTensor>& buffers) : tensors(buffers) {
    const cuda::ContextScope scope(device_);
    for (NamedTensor& b : tensors) {
      const std::size_t bytes = static_cast<std::size_t>(b.tensor.elements()) * size_of(b.tensor.dtype);
      memory_.push_back(std::make_unique<cuda::DeviceScratch>(device_, bytes, nullptr));
      check_cuda(cuda::driver()->copy_to_device(address_of(*memory_.back()), b.tensor.data, bytes, nullptr), "copy");
      b.tensor.data = memory_.back()->data();
      b.tensor.device = {DeviceKind::cuda, 0};
    }
  }
  std::vector<std::int32_t> states(const std::string& text, const BlockMaskShape& s, bool exact) const {
    std::vector<std::int32_t> found(static_cast<std::size_t>(s.batch * s.heads * s.row_tiles() * s.key_tiles()));
    const std::size_t bytes = found.size() * sizeof(std::int32_t);
    const cuda::DeviceScratch memory(device_, bytes, nullptr);
    block_mask_states(
        text, tensors, s,
        Tensor(memory.data(), DType::i32, {s.batch, s.heads, s.row_tiles(), s.key_tiles()}, {DeviceKind::cuda, 0}),
        exact);
    const cuda::ContextScope scope(device_);
    check_cuda(cuda::driver()->copy_to_host(found.data(), address_of(memory), bytes, nullptr), "copy");
    check_cuda(cuda::driver()->stream_synchronize(nullptr), "cuStreamSynchronize");
    return found;
  }
  std::vector<NamedTensor> tensors;

 private:
  static DevicePtr address_of(const cuda::DeviceScratch& memory) { return reinterpret_cast<DevicePtr>(memory.data()); }
  const cuda::DeviceFacts& device_ = cuda::device_facts(0);
  std::vector<std::unique_ptr<cuda::DeviceScratch>> memory_;
};

void compare(Findings& findings, const std::string& text, const std::vector<ModBuffer>& specs, std::uint32_t seed,
             bool exact_too) {
  std::mt19937 random(seed);
  for (const test::MaskContents contents : {test::MaskContents::runs, test::MaskContents::any}) {
    const test::MaskBuffers buffers(specs, contents, random);
    const Copies copies(buffers.tensors());
    for (const BlockMaskShape& s :
         {BlockMaskShape{2, 3, 3300, 3000, 128, 128}, {2, 1, 150, 1100, 33, 7}, {1, 2, 129, 5000, 64, 1}}) {
      for (const bool exact : {false, true}) {
        if (exact && !exact_too) continue;
        if (copies.states(text, s, exact) == block_mask(text, buffers.tensors(), s, exact).states())
          findings.right("block mask");
        else
          findings.wrong(onepass::text("\"", text, "\", ", s.seq_q, " x ", s.seq_k, exact ? ", exact" : ""));
      }
    }
  }
}

TEST_F(DeviceBlockMask, AGalleryHasTheTilesOfTheCpu) {
  struct Case {
    const char* text;
    std::vector<ModBuffer> buffers;
  };
  const std::vector<Case> cases = {
      {"q_index >= k_index", {}},
      {"q_index >= k_index && (k_index < 4 || q_index - k_index < 240)", {}},
      {"q_index >= k_index && q_index - k_index < 640 && (q_index - k_index) % 4 == 0", {}},
      {"k_index < prefix[batch] || q_index >= k_index", {{"prefix", DType::i32, 1, {2}}}},
      {"doc[q_index] == doc[k_index] && q_index >= k_index", {{"doc", DType::i32, 1, {3300}}}},
      {"doc(batch, q_index) == doc(batch, k_index) || head == 1", {{"doc", DType::i32, 2, {2, 3000}}}},
      {"abs(k_index / 64 - min(max(q_index / 64, 6), 45)) <= 6 && abs(k_index % 64 - min(max(q_index % 64, 6), 57)) <= "
       "6",
       {}},
      {"k_index <= q_index && q_index < end[k_index]", {{"end", DType::i32, 1, {3000}}}},
      {"q_index / 512 == k_index / 512 && q_index >= k_index", {}},
      {"listed(q_index / 128, k_index / 128)", {{"listed", DType::boolean, 2, {26, 24}}}},
      {"bias(head, k_index - q_index) > 0.25f || half[k_index] != half[q_index]",
       {{"bias", DType::bf16, 2, {2, 900}}, {"half", DType::f16, 1, {3000}}}},
      {"end[next[k_index]] > q_index || next[q_index - 100] == next[k_index]",
       {{"end", DType::i32, 1, {400}}, {"next", DType::i32, 1, {3000}}}},
      {"seen[q_index, k_index]", {{"seen", DType::boolean, 2, {1500, 1500}}}},  // too large for levels
  };
  Findings findings;
  in_parallel(cases.size(), [&](std::size_t i) { compare(findings, cases[i].text, cases[i].buffers, 5, true); });
  findings.report();
}

// Random programs shift and divide by any number, which C++ leaves undefined: their elements are not compared.
TEST_F(DeviceBlockMask, RandomProgramsHaveTheTilesOfTheCpu) {
  const std::vector<ModBuffer> specs = {{"doc", DType::i32, 1, {3000}},
                                        {"ids", DType::i32, 2, {2, 3000}},
                                        {"table", DType::f32, 2, {3, 17}},
                                        {"flags", DType::boolean, 1, {5}},
                                        {"limit", DType::i32, 1, {2}}};
  std::mt19937 random(9);
  std::vector<std::string> texts;
  for (int i = 0; i < 48; ++i) texts.push_back(test::RandomMask(random).mask(1 + i % 3));
  Findings findings;
  in_parallel(texts.size(),
              [&](std::size_t i) { compare(findings, texts[i], specs, static_cast<std::uint32_t>(i), false); });
  findings.report();
}

}  // namespace
}  // namespace onepass::check
