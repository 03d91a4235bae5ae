// Whole kernels of src/cuda/decode without a GPU, judged as on one: by the float64 oracle, with poison around
// everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "algebra/numerics.hpp"
#include "base/overlap.hpp"
#include "base/text.hpp"
#include "cuda/decode/decode.hpp"
#include "expression/mask_bounds.hpp"
#include "on_host/boxes.hpp"
#include "on_host/decode_config.hpp"
#include "on_host/decode_kernel.hpp"
#include "on_host/whole_kernel.hpp"
#include "support/extremes.hpp"
#include "support/partly_unreadable.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

constexpr int kSharedBytes = 232448;   // that a block may have, on Hopper
constexpr int kMultiprocessors = 132;  // of that GPU

// params: of the problem, or of a part of it.
void run_kernel(const warps::DecodeKernel& kernel, const Problem& problem, const decode::DecodeParams& params,
                int grid) {
  const auto& config = *static_cast<const decode::DecodeConfig*>(kernel.config);
  const decode::CopiedParams copied{
      config.copy_warps != 0 ? decode::key_maps(problem, config).at(params, boxes_of) : decode::KeyMaps{}, params};
  const void* const all = &copied;
  kernel.run(config.copy_warps != 0 ? all : &params, static_cast<unsigned>(grid));
}

class EmulatedDecoding : public testing::TestWithParam<const warps::DecodeKernel*> {
 protected:
  // The outputs' bytes. CTAs share the work differently for every number of them.
  static std::string run(check::Inputs& inputs, bool early, unsigned blocks) {
    inputs.poison_outputs();
    launch(inputs, inputs.problem, early, blocks);
    return output_bytes(inputs);
  }
  static decode::Sharing sharing_of(const Problem& p, const decode::DecodeConfig& c) {
    return decode::sharing_of(p, c, c.row_blocks ? 1 : decode::heads_together(p, kMultiprocessors));
  }
  // Kernels of even parts get as many of each group as there would be blocks.
  static decode::Share share_of(const Problem& p, const decode::DecodeConfig& c, int blocks) {
    const decode::Sharing sharing = sharing_of(p, c);
    if (!c.even) {
      const decode::Share share = decode::share_of(p, sharing, blocks);
      return share.splits == 0 ? share : decode::Share{blocks, 0};
    }
    const auto groups = static_cast<int>(decode::groups_of(p, sharing));
    const int splits = std::clamp(static_cast<int>(decode::tiles_of(p, c.block_n)), 1, blocks);
    return {groups * splits, splits};
  }
  // p: the inputs' problem, or its part of one sequence, number `sequence`.
  static void launch(const check::Inputs& inputs, const Problem& p, bool early, unsigned blocks,
                     std::int64_t sequence = 0, const cuda::Part& part = {}) {
    const warps::DecodeKernel& kernel = *GetParam();
    const auto& c = *static_cast<const decode::DecodeConfig*>(kernel.config);
    const decode::Sharing sharing = sharing_of(p, c);
    const decode::Share share = share_of(p, c, static_cast<int>(blocks) * sharing.co_scheduled);
    std::vector<unsigned> workspace(decode::workspace_bytes_of(p, sharing, share.blocks) / sizeof(unsigned) + 16,
                                    0xffffffff);
    const std::vector<unsigned> beyond(workspace.end() - 16, workspace.end());
    unsigned counters[decode::kMaxBlocks] = {};
    decode::DecodeParams params = decode::decided_params(p, c, sharing, share, part);
    decode::bind(params, inputs.tensors, workspace.data());
    params.counters = counters;
    const auto bytes = [&](const auto& stride, DType type) {
      return sequence * stride[0] * static_cast<std::int64_t>(size_of(type));
    };
    if (p.varlen) {
      params.cu_q += sequence;
    } else {
      params.q = static_cast<const char*>(params.q) + bytes(params.q_stride, p.dtype);
      params.out = static_cast<char*>(params.out) + bytes(params.out_stride, p.out_dtype);
      params.lse += sequence * params.lse_stride[0];
      params.row_max += sequence * params.row_max_stride[0];
      params.entropy += sequence * params.entropy_stride[0];
    }
    if (p.paged()) {
      params.page_table += sequence * params.table_stride[0];
    } else {
      params.k = static_cast<const char*>(params.k) + bytes(params.k_stride, p.dtype);
      params.v = static_cast<const char*>(params.v) + bytes(params.v_stride, p.dtype);
    }
    params.seqused += sequence * params.seqused_stride;
    params.tree += sequence * params.tree_stride[0];
    params.slopes += sequence * params.slope_stride[0];
    params.min_tiles = 1;
    warps::copies_are_early = early;
    warps::backwards = early;
    run_kernel(kernel, p, params, share.blocks * sharing.co_scheduled);
    EXPECT_TRUE(std::vector<unsigned>(workspace.end() - 16, workspace.end()) == beyond) << "written past the workspace";
    for (const unsigned counter : counters) EXPECT_EQ(counter, 0u) << "the counters are not as they were found";
  }
};

TEST_P(EmulatedDecoding, IsTheLibrarys) {
  const Problem p = parse_problem(GetParam()->problem);
  const auto& features = *static_cast<const ForwardFeatures*>(GetParam()->features);
  const auto& config = *static_cast<const decode::DecodeConfig*>(GetParam()->config);
  const decode::DecodeConfig chosen = decode_config(p, GetParam()->name, kSharedBytes);
  EXPECT_TRUE(features == cuda::features_of(p));
  EXPECT_TRUE(!config.even || decode::may_be_even(p, decode::sharing_of(p, config)));
  EXPECT_TRUE(config == chosen) << "the library takes another config by now";
  EXPECT_EQ(GetParam()->shared_bytes, decode::layout_of(features, chosen).total);
}

TEST_P(EmulatedDecoding, IsRightForAnyNumberOfBlocks) {
  for (const check::Distribution distribution : check::kDistributions) {
    check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), 1, distribution);
    for (const unsigned blocks : {1u, 3u, 13u}) {
      run(inputs, false, blocks);
      expect_right(inputs, text(check::name_of(distribution), ", ", blocks, " blocks"));
    }
  }
}

TEST_P(EmulatedDecoding, DependsOnNoOrder) {
  check::Inputs inputs = check::make_inputs(parse_problem(GetParam()->problem), 1);
  const std::string late = run(inputs, false, 5);
  EXPECT_TRUE(run(inputs, true, 5) == late);
}

TEST_P(EmulatedDecoding, ASequenceAloneHasTheSameBits) {
  const Problem p = parse_problem(GetParam()->problem);
  if (!p.batch_invariant) GTEST_SKIP() << "it does not promise that";
  check::Inputs inputs = check::make_inputs(p, 1);
  const std::string together = run(inputs, false, 7);
  Problem one = inputs.problem;  // with its layout
  one.batch = 1;
  inputs.poison_outputs();
  for (std::int64_t b = 0; b < p.batch; ++b) launch(inputs, one, false, 2, b);
  EXPECT_TRUE(output_bytes(inputs) == together);
}

TEST_P(EmulatedDecoding, DoesNotReadTilesThatAMaskModHides) {
  const Problem p = parse_problem(GetParam()->problem);
  if (p.mask_mod.empty() || p.paged() || p.varlen)
    GTEST_SKIP() << "it reads all keys, or those of a head are not neighbours";
  const std::int64_t tile = static_cast<const decode::DecodeConfig*>(GetParam()->config)->block_n;
  check::Inputs inputs = check::make_inputs(p, 1, check::Distribution::normal);
  const std::string all = run(inputs, false, 3);
  const Mods mods = mods_of(p, p.mod_buffers);
  const MaskBounds bounds(mods.mask, inputs.tensors.mod_buffers, 1 << 20);
  const test::PartlyUnreadable k(inputs.tensors.k), v(inputs.tensors.v);
  std::size_t pages = 0;
  for (std::int64_t head = 0; head < p.batch * p.heads_kv; ++head) {
    const std::int64_t b = head / p.heads_kv, first = head % p.heads_kv * p.group();
    std::vector<bool> seen;
    for (std::int64_t key = 0; key < p.seq_k; key += tile)
      seen.push_back(bounds.classify({b, b, first, first + p.group() - 1, 0, p.seq_q - 1, key,
                                      std::min(key + tile, p.seq_k) - 1}) != Tile::skip);
    const auto tiles = static_cast<std::int64_t>(seen.size());
    for (std::int64_t from = 0, to; from < tiles; from = to + 1) {
      for (to = from; to < tiles && !seen[static_cast<std::size_t>(to)];) ++to;
      const std::int64_t lo = head * p.seq_k + from * tile, hi = head * p.seq_k + std::min(to * tile, p.seq_k);
      pages += k.hide(lo, hi) + v.hide(lo, hi);
    }
  }
  inputs.tensors.k = k.tensor(), inputs.tensors.v = v.tensor();
  EXPECT_TRUE(run(inputs, true, 3) == all) << pages << " pages of memory are hidden";
}

// Some rows of a sequence, by another kernel: q [tokens, heads, dim] from a token on, which see the cache up to their
// own key.
class Chunk {
 public:
  Chunk(const check::Inputs& inputs, const warps::DecodeKernel& kernel, std::int64_t sequence, int first, int count)
      : problem_(inputs.problem), config_(*static_cast<const decode::DecodeConfig*>(kernel.config)) {
    const Tensors& t = inputs.tensors;
    const auto* cu = static_cast<const int*>(t.cu_seqlens_q.data);
    const int begin = cu[sequence], rows = cu[sequence + 1] - begin;
    ends_[1] = count;
    keys_ = static_cast<const int*>(t.seqused_k.data)[sequence] - rows + first + count;
    problem_.batch = 1;
    problem_.seq_q = config_.rows / problem_.group();
    const decode::Sharing sharing = decode::sharing_of(problem_, config_);
    const decode::Share share = decode::share_of(problem_, sharing, 2);
    workspace_.resize(decode::workspace_bytes_of(problem_, sharing, share.blocks) / sizeof(unsigned));
    decode::DecodeParams p = decode::decided_params(problem_, config_, sharing, share);
    decode::bind(p, t, workspace_.data());
    p.counters = counters_;
    p.cu_q = ends_, p.seqused = &keys_;
    p.page_table += sequence * p.table_stride[0];
    p.q = static_cast<const char*>(p.q) + (begin + first) * p.q_stride[2] * 2;
    p.out = static_cast<char*>(p.out) + (begin + first) * p.out_stride[2] * 2;
    p.lse += (begin + first) * p.lse_stride[2];
    p.row_max += (begin + first) * p.row_max_stride[2];
    p.entropy += (begin + first) * p.entropy_stride[2];
    p.min_tiles = 1;
    run_kernel(kernel, problem_, p, share.blocks);
  }

 private:
  Problem problem_;
  const decode::DecodeConfig& config_;
  int ends_[2] = {}, keys_ = 0;
  std::vector<unsigned> workspace_;
  unsigned counters_[decode::kMaxBlocks] = {};
};

// Scores of 7200, beyond what fast steps can do, so that rows are computed again; and values of many magnitudes that
// cancel, token by token, so that a sum in another order is another number.
void make_alike(check::Inputs& inputs) {
  const Problem& p = inputs.problem;
  const auto words = [](const ConstTensor& t) { return reinterpret_cast<std::uint16_t*>(extent_of(t).from); };
  for (const ConstTensor* const t : {&inputs.tensors.q, &inputs.tensors.k})
    std::fill(words(*t), reinterpret_cast<std::uint16_t*>(extent_of(*t).to), from_float<bf16>(30.0f).bits);
  std::mt19937 random(3);
  for (std::int64_t page = 0; page < p.pages; ++page) {
    for (std::int64_t head = 0; head < p.heads_kv; ++head) {
      for (std::int64_t token = 0; token < p.page_size; token += 2) {
        for (std::int64_t d = 0; d < p.dim_v; ++d) {
          const float x =
              std::ldexp(std::uniform_real_distribution(-2.0f, 2.0f)(random), static_cast<int>(random() % 24));
          for (const std::int64_t i : {0, 1})
            words(inputs.tensors.v)[page * p.layout.v[0] + head * p.layout.v[1] + (token + i) * p.layout.v[2] + d] =
                from_float<bf16>(i == 0 ? x : -x).bits;
        }
      }
    }
  }
}

// An infinity among the values of a second piece: at a key that all rows of the third sequence see.
void put_infinity(const check::Inputs& inputs) {
  const Problem& p = inputs.problem;
  constexpr std::int64_t kSequence = 2, kKey = 1040;
  const auto* pages = static_cast<const int*>(inputs.tensors.page_table.data);
  const std::int64_t page = pages[kSequence * p.layout.page_table[0] + kKey / p.page_size];
  for (std::int64_t head = 0; head < p.heads_kv; ++head)
    store_element(reinterpret_cast<void*>(extent_of(inputs.tensors.v).from), p.dtype,
                  page * p.layout.v[0] + head * p.layout.v[1] + kKey % p.page_size * p.layout.v[2] + 5 + head,
                  INFINITY);
}

// With batch_invariant, rows have the bits that they have in chunks of any number of rows, by the kernels of 16 and of
// 64 rows, alone and beside others, for any number of CTAs that end in any order. many: also more rows, in blocks.
class EmulatedOneResult : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedOneResult,
                         testing::Values("bf16_chunks_many", "bf16_chunks_blocks", "f16_chunks_blocks",
                                         "bf16_chunks_hopper", "f16_chunks_hopper", "bf16_chunks_many_hopper",
                                         "bf16_chunks_wide_hopper", "f16_chunks_wide_hopper"));

TEST_P(EmulatedOneResult, IsThatOfTheRowsInChunks) {
  const auto named = [](const std::string& name) {
    const auto& all = warps::decode_kernels;
    const auto at = std::ranges::find_if(all, [&](const auto* k) { return k->name == name; });
    return at == all.end() ? nullptr : *at;
  };
  const std::string name = GetParam(), type = name.substr(0, name.find('_'));
  if (!named(name)) GTEST_SKIP() << "its kernels are in long_kernels.txt";
  const std::string hopper = name == type + "_chunks_hopper" ? "_hopper" : "";  // or a mixture: the bits are the same
  const warps::DecodeKernel &few = *named(type + "_chunks_few" + hopper),
                            &many = *named(type + "_chunks_many" + hopper), &all = *named(name);
  const auto& config = *static_cast<const decode::DecodeConfig*>(all.config);
  std::mt19937 random(1);
  enum class Values { drawn, alike, infinite };
  for (const auto& [distribution, values] : {std::pair{check::Distribution::rising, Values::drawn},
                                             {check::Distribution::huge, Values::drawn},
                                             {check::Distribution::normal, Values::alike},
                                             {check::Distribution::normal, Values::infinite}}) {
    if (values == Values::alike && type != "bf16") continue;
    check::Inputs inputs = check::make_inputs(parse_problem(all.problem), 1, distribution);
    if (values == Values::alike) make_alike(inputs);
    if (values == Values::infinite) put_infinity(inputs);
    const Problem& p = inputs.problem;
    std::string whole;
    for (const int blocks : {3, 1}) {
      const decode::Sharing sharing = decode::sharing_of(p, config, blocks == 3 && !config.row_blocks ? 2 : 1);
      const decode::Share share = decode::share_of(p, sharing, blocks * sharing.co_scheduled);
      std::vector<unsigned> workspace(decode::workspace_bytes_of(p, sharing, share.blocks) / sizeof(unsigned));
      unsigned counters[decode::kMaxBlocks] = {};
      decode::DecodeParams params = decode::decided_params(p, config, sharing, share);
      decode::bind(params, inputs.tensors, workspace.data());
      params.counters = counters;
      inputs.poison_outputs();
      warps::backwards = blocks == 3;
      run_kernel(all, p, params, share.blocks * sharing.co_scheduled);
      warps::backwards = false;
      if (whole.empty()) whole = output_bytes(inputs), expect_right(inputs, std::string(check::name_of(distribution)));
      EXPECT_TRUE(output_bytes(inputs) == whole) << check::name_of(distribution) << ", one CTA";
    }
    inputs.poison_outputs();
    const auto* cu = static_cast<const int*>(inputs.tensors.cu_seqlens_q.data);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (int first = 0, count; first < cu[b + 1] - cu[b]; first += count) {
        count = std::min(cu[b + 1] - cu[b] - first, std::uniform_int_distribution(1, 6)(random));
        Chunk(inputs, count <= 4 ? few : many, b, first, count);
      }
    }
    EXPECT_TRUE(output_bytes(inputs) == whole) << check::name_of(distribution) << ", chunks";
  }
}

// Two launches for sequences of up to one query and of more write every element once between them.
TEST_P(EmulatedDecoding, LeavesOutTheSequencesOfAnotherKernel) {
  const Problem p = parse_problem(GetParam()->problem);
  if (!p.varlen || p.packed_k()) GTEST_SKIP() << "no other kernel shares calls without packed q over a cache";
  check::Inputs inputs = check::make_inputs(p, 1);
  const cuda::Part few{.most_rows = 1}, more{.least_rows = 2};
  const auto alone = [&](const cuda::Part& part) {
    inputs.poison_outputs();
    launch(inputs, inputs.problem, false, 3, 0, part);
    return output_bytes(inputs);
  };
  inputs.poison_outputs();
  const std::string poison = output_bytes(inputs), first = alone(few), second = alone(more);
  EXPECT_NE(first, poison);
  if (p.seq_q > 1) {
    EXPECT_NE(second, poison);
  }
  for (std::size_t i = 0; i < poison.size(); ++i)
    ASSERT_FALSE(first[i] != poison[i] && second[i] != poison[i]) << "both launches have written byte " << i;
  launch(inputs, inputs.problem, false, 3, 0, few);
  expect_right(inputs, "both launches");
}

// A phi near a row's scores serves it, one far above or below them does not; results are right either way, and rows
// without keys are served.
TEST_P(EmulatedDecoding, AUnifiedMaximumServesTheRowsNearIt) {
  Problem p = parse_problem(GetParam()->problem);
  if (!p.unified_max) GTEST_SKIP() << "it has none";
  const float reach = p.dtype == DType::f16 ? decode::kUnifiedReach16 : kUnifiedReach;
  for (const float phi : {*p.unified_max, 200.0f, -200.0f}) {
    p.unified_max = phi;
    check::Inputs inputs = check::make_inputs(p, 1, check::Distribution::normal);
    run(inputs, false, 3);
    expect_right(inputs, text("phi ", phi));
    const Tensor &recomputed = inputs.tensors.recomputed, &lse = inputs.tensors.lse;
    const auto at = [](const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t i) {
      return b * t.stride[0] + h * t.stride[1] + i * t.stride[2];
    };
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const bool empty = p.seqused && static_cast<const int*>(inputs.tensors.seqused_k.data)[b] == 0;
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        for (std::int64_t i = 0; i < p.seq_q; ++i) {
          const float far = empty ? 0 : std::abs(static_cast<const float*>(lse.data)[at(lse, b, h, i)] - phi);
          if (!empty && std::abs(far - reach) < 7) continue;  // the LSE is not the largest score
          EXPECT_EQ(static_cast<const int*>(recomputed.data)[at(recomputed, b, h, i)], far > reach)
              << "phi " << phi << ", row " << b << " " << h << " " << i << ", " << far << " away";
        }
      }
    }
  }
}

TEST_P(EmulatedDecoding, AnOffsetMovesTheBand) {
  expect_right_where_the_band_moves(parse_problem(GetParam()->problem), 1,
                                    [](check::Inputs& inputs) { run(inputs, false, 4); });
}

TEST_P(EmulatedDecoding, NaNAndInfinityReachOnlyTheRowsThatSeeThem) {
  const Problem p = parse_problem(GetParam()->problem);
  if (p.varlen || p.heads_q < 2) GTEST_SKIP() << "the places of the faults are those of two heads of one length";
  std::vector<test::Poke> faults(std::begin(test::kPokes), std::end(test::kPokes));
  if (p.key_dtype() != DType::f8e4m3) {  // which has no infinity, and whose rows are computed again one by one
    faults.insert(faults.end(), std::begin(test::kManyPokes), std::end(test::kManyPokes));
    faults.insert(faults.end(), std::begin(test::kValuePokes), std::end(test::kValuePokes));
  }
  for (const auto& fault : faults) {
    check::Inputs inputs = check::make_inputs(p, 2);
    fault.poke(inputs);
    run(inputs, false, 3);
    expect_right(inputs, fault.name);
  }
}

TEST_P(EmulatedDecoding, ScoresAtTheEndsOfFp32) {
  const Problem p = parse_problem(GetParam()->problem);
  if (!p.score_mod.empty()) GTEST_SKIP() << "fp32 cannot tell the scores that it makes apart";
  if (p.varlen) GTEST_SKIP() << "extremes are of sequences of one length";
  for (const test::Extreme& extreme : test::extremes()) {
    if (!extreme.fits(p)) continue;
    check::Inputs inputs = check::make_inputs(p, 2);
    extreme.make(inputs);
    run(inputs, false, 3);
    test::expect_close(verdict_of(inputs), p.dtype, extreme.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedDecoding, testing::ValuesIn(warps::decode_kernels),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

}  // namespace
}  // namespace onepass
