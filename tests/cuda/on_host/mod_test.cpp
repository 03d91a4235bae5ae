// The packing of a mask_mod without a GPU: bits, fragments and tiles against the mask's elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "check/draw/side.hpp"
#include "check/inputs.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "expression/scalar.hpp"
#include "on_host/mod_kernel.hpp"
#include "problem/attention/arguments.hpp"
#include "support/named_params.hpp"

namespace onepass {
namespace {

// The elements that a problem's masks show.
class Elements {
 public:
  explicit Elements(const check::Inputs& in) : in_(in), p_(in.problem) {
    const std::string& text = p_.mask_mod;
    mask_ = read_expression(ModKind::mask, text, p_.mod_buffers);
    numbers_.resize(mask_.steps.size() * kExprBlock);
    integers_.resize(mask_.steps.size() * kExprBlock);
  }
  std::vector<float> row(std::int32_t batch, std::int32_t head, std::int32_t row) {
    std::vector<float> seen(static_cast<std::size_t>(p_.seq_k), 1.0f);
    const ExprTile<float> tile{seen.data(), 1, 1, p_.seq_k, batch, 0, &head, &row};
    ExprRun<float, ScalarFunctions>(mask_, in_.tensors.mod_buffers, {numbers_.data(), integers_.data()})
        .hide(tile, 0.0f);
    if (!p_.bool_mask) return seen;
    const Dims stride = broadcast_strides(in_.tensors.bool_mask);
    const auto* const given = static_cast<const unsigned char*>(in_.tensors.bool_mask.data);
    for (std::int64_t j = 0; j < p_.seq_k; ++j)
      if (given[batch * stride[0] + head * stride[1] + row * stride[2] + j * stride[3]] == 0)
        seen[static_cast<std::size_t>(j)] = 0;
    return seen;
  }

 private:
  const check::Inputs& in_;
  const Problem& p_;
  Expression mask_;
  std::vector<float> numbers_;
  std::vector<std::int32_t> integers_;
};

class EmulatedMod : public testing::TestWithParam<const warps::ModKernel*> {};

TEST_P(EmulatedMod, PacksWhatTheMaskShows) {
  check::Inputs in = check::make_inputs(parse_problem(GetParam()->problem), 3);
  for (const NamedTensor& b : in.tensors.mod_buffers) {  // as documents: runs of equal numbers
    if (b.tensor.dtype != DType::i32) continue;
    if (b.name == "block_mask") {
      check::draw_block_mask(b.tensor, 3);
      continue;
    }
    auto* const x = check::Inputs::writable<std::int32_t>(b.tensor);
    for (std::int64_t i = 0; i < b.tensor.elements(); ++i) x[i] = static_cast<std::int32_t>(i / 90);
  }
  const Problem& p = in.problem;
  const auto packed = cuda::packed_problem(std::make_shared<const Problem>(p));
  ASSERT_TRUE(packed->bool_mask && packed->mask_mod.empty());
  Elements elements(in);
  int states[3] = {};
  for (const cuda::TileShape& tile : {cuda::TileShape{128, 128, 8}, {64, 32, 4}, {192, 96, 12}, {64, 16, 4}}) {
    const bool fragments = tile.block_n == 32;
    std::vector<unsigned> workspace(cuda::mask_bytes(*packed, tile, fragments) / 4 + 16, 0xdeadbeef);
    cuda::MaskPlan plan = cuda::plan_mask(*packed, tile, fragments).at(in.tensors.bool_mask.data, workspace.data());
    plan.pack.units = cuda::mod_units(plan.pack);
    ModPackParams params{plan.pack, {}};
    cuda::fill_mod_buffers(in.tensors, params.buffers);
    GetParam()->run(&params);
    const int block_n = plan.pack.block_n;
    for (std::int32_t b = 0; b < p.batch; ++b) {
      for (std::int32_t h = 0; h < p.heads_q; ++h) {
        const auto of = [&](const long long(&stride)[3], std::int64_t row) {
          return b * stride[0] + h * stride[1] + row * stride[2];
        };
        const std::int64_t blocks = (p.seq_k + block_n - 1) / block_n;
        std::vector<bool> any(static_cast<std::size_t>(blocks)), all(any.size(), true);
        for (std::int32_t i = 0; i < p.seq_q; ++i) {
          const std::vector<float> seen = elements.row(b, h, i);
          for (std::int64_t j = 0; j < p.seq_k; ++j) {
            const bool want = seen[static_cast<std::size_t>(j)] != 0;
            ASSERT_EQ(plan.bits.bits[of(plan.bits.bits_stride, i) + j / 32] >> j % 32 & 1, want ? 1u : 0u)
                << b << " " << h << " " << i << " " << j;
            const auto n = static_cast<std::size_t>(j / block_n);
            any[n] = any[n] || want, all[n] = all[n] && want;
            if (!fragments) continue;
            const std::int64_t r = i % 64, lane = j % 8 * 4 + r % 8 / 2, at = r / 8 * 4 + j % 16 / 8 * 2 + r % 2;
            const unsigned word =
                plan.pack.fragments
                    .words[of(plan.pack.fragments.stride, i / 64) + j / 32 * 64 + j % 32 / 16 * 32 + lane];
            ASSERT_EQ(word >> at & 1, want ? 1u : 0u) << "fragment " << i << " " << j;
          }
          if ((i + 1) % tile.block_m != 0 && i + 1 != p.seq_q) continue;
          for (std::size_t n = 0; n < any.size(); ++n) {
            const int state = plan.bits.tiles[of(plan.bits.tile_stride, i / tile.block_m * tile.block_m / 64) +
                                              static_cast<std::int64_t>(n) * block_n / 32];
            EXPECT_EQ(state, !any[n] ? kAllMasked : all[n] ? kNoneMasked : kSomeMasked) << i << " block " << n;
            ++states[state % 3];
          }
          any.assign(any.size(), false), all.assign(all.size(), true);
        }
      }
    }
  }
  EXPECT_GT(states[kSomeMasked], 0);
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedMod, testing::ValuesIn(warps::mod_kernels),
                         [](const auto& kernel) { return kernel.param->name; });

}  // namespace
}  // namespace onepass
