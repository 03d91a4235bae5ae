#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "distributed/plans.hpp"
#include "onepass/error.hpp"

namespace onepass::inline v0::context_parallel::test {
namespace {

using Matrix = std::vector<std::vector<Index>>;
constexpr Shape kShape{.batch = 1, .heads_q = 32, .heads_kv = 8, .dim_qk = 128, .dim_v = 128, .bytes = 2};
constexpr Index kKey = 8 * (128 + 128) * 2;  // bytes of a position's K and V

Index received(const Matrix& bytes, std::size_t rank) {
  Index n = 0;
  for (const auto& row : bytes) n += row[rank];
  return n;
}

TEST(ContextHeads, EveryHeadIsComputedOnce) {
  for (const auto& [heads, heads_kv] :
       std::vector<std::pair<Index, Index>>{{8, 2}, {7, 7}, {10, 5}, {2, 1}, {0, 0}, {6, 3}}) {
    const Index group = heads_kv > 0 ? heads / heads_kv : 1;
    for (Index ranks = 1; ranks < 12; ++ranks) {
      std::vector<Index> computed;
      for (Index r = 0; r < ranks; ++r) {
        const HeadShare mine = heads_of(heads, heads_kv, ranks, r);
        Index at = 0;
        for (const HeadShare& call : head_calls(heads, heads_kv, ranks, r)) {
          EXPECT_EQ(call.heads.begin, at);
          at = call.heads.end;
          EXPECT_EQ(call.heads.size() % call.heads_kv.size(), 0);
          for (Index h = call.heads.begin; h < call.heads.end; ++h) {
            const Index of_call = (h - call.heads.begin) / (call.heads.size() / call.heads_kv.size());
            EXPECT_EQ(mine.heads_kv.begin + call.heads_kv.begin + of_call, (mine.heads.begin + h) / group);
            computed.push_back(mine.heads.begin + h);
          }
        }
        EXPECT_EQ(at, mine.heads.size());
      }
      std::vector<Index> all(static_cast<std::size_t>(heads));
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(computed, all) << heads << " " << heads_kv << " " << ranks;
    }
  }
  EXPECT_THROW(static_cast<void>(heads_of(6, 4, 2, 0)), Error);
  EXPECT_THROW(static_cast<void>(heads_of(6, 3, 2, 2)), Error);
}

// A window of 4k at 1M: a rank receives the 4k keys in front of its shard, and not the sequence.
TEST(ContextTraffic, OnlyWhatIsSeenTravels) {
  constexpr Index kLength = 1 << 20, kWindow = 4096;
  const Layout layout = Layout::contiguous(kLength, 16);
  const Matrix bytes = traffic(Scheme::gather, layout, {kWindow, 0}, kShape, false);
  EXPECT_EQ(received(bytes, 0), 0);
  for (std::size_t r = 1; r < 16; ++r) {
    EXPECT_EQ(received(bytes, r), kWindow * kKey);  // 17 MB
    EXPECT_EQ(bytes[r - 1][r], kWindow * kKey);
  }
  EXPECT_EQ(received(traffic(Scheme::gather, layout, {}, kShape, false), 3), (kLength - kLength / 16) * kKey);  // 4 GB
}

// Causal, contiguous: half of what a full mask sends.
TEST(ContextTraffic, CausalShardsSendHalf) {
  const Layout layout = Layout::contiguous(64, 8);
  for (const Scheme scheme : {Scheme::gather, Scheme::ring}) {
    for (const bool backward : {false, true}) {
      Index causal = 0, full = 0;
      for (std::size_t r = 0; r < 8; ++r) {
        causal += received(traffic(scheme, layout, {-1, 0}, kShape, backward), r);
        full += received(traffic(scheme, layout, {}, kShape, backward), r);
      }
      EXPECT_EQ(2 * causal, full) << name_of(scheme);
    }
  }
}

// The bytes of gather are those of its moves; gradients go the other way in fp32.
TEST(ContextTraffic, IsTheMoves) {
  for_each_case([](const Layout& layout, const Visibility& v) {
    const Matrix forward = traffic(Scheme::gather, layout, v, kShape, false),
                 backward = traffic(Scheme::gather, layout, v, kShape, true);
    for (Index s = 0; s < layout.ranks(); ++s) {
      for (Index r = 0; r < layout.ranks(); ++r) {
        Index keys = 0, home = 0;
        for (const Move& m : moves(layout, v, s, r)) keys += r == s ? 0 : m.from.size();
        for (const Move& m : moves(layout, v, r, s)) home += r == s ? 0 : m.from.size();
        const auto from = static_cast<std::size_t>(s), to = static_cast<std::size_t>(r);
        ASSERT_EQ(forward[from][to], keys * kKey);
        ASSERT_EQ(backward[from][to], (keys + 2 * home) * kKey);
      }
    }
  });
}

TEST(ContextModel, KnowsWorkTimeAndMemory) {
  const Layout zigzag = Layout::zigzag(1 << 17, 2), contiguous = Layout::contiguous(1 << 17, 2);
  const auto of = [](const std::vector<Estimate>& all, Scheme scheme) {
    return *std::find_if(all.begin(), all.end(), [&](const Estimate& e) { return e.scheme == scheme; });
  };
  const std::vector<Estimate> here = estimates(zigzag, {-1, 0}, kShape);
  ASSERT_EQ(here.size(), 3u);
  EXPECT_TRUE(std::is_sorted(here.begin(), here.end(),
                             [](const Estimate& a, const Estimate& b) { return a.total() < b.total(); }));
  const Estimate gather = of(here, Scheme::gather);
  EXPECT_GT(gather.ideal / gather.total(), 0.95);
  EXPECT_LT(gather.ideal / gather.total(), 1.0);
  EXPECT_EQ(gather.memory, ((1 << 17) + (1 << 16)) * kKey * 3);
  // Contiguous shards wait for their last rank: 3/4 of the work at 2 ranks.
  EXPECT_NEAR(gather.ideal / of(estimates(contiguous, {-1, 0}, kShape), Scheme::gather).total(), 2.0 / 3, 0.01);
  // One rank sends nothing and is ideal.
  for (const Estimate& e : estimates(Layout::contiguous(4096, 1), {-1, 0}, kShape))
    EXPECT_NEAR(e.total(), e.ideal, 1e-12);
  // A slow link: with a K/V head for each query head, many ranks are better off with heads that are dealt out.
  const Machine slow{.bytes_per_second = 2e9};
  const Shape wide{.heads_q = 32, .heads_kv = 32, .dim_qk = 128, .dim_v = 128};
  EXPECT_EQ(estimates(Layout::zigzag(1 << 16, 16), {-1, 0}, wide, slow).front().scheme, Scheme::ulysses);
  EXPECT_EQ(estimates(Layout::zigzag(1 << 16, 2), {-1, 0}, kShape).front().scheme, Scheme::gather);
}

TEST(ContextModel, ExplainsAProblem) {
  constexpr const char* kLine = "fwd b1 h32/8 s16384x16384 d128 bf16 causal_bottom_right";
  const std::string said = explain(kLine, Layout::zigzag(16384, 2));
  for (const char* words : {"rank 0: 8192 positions (0..4095 12288..16383), 50.0 % of the visible pairs",
                            "rank 1: 8192 positions (4096..12287), 50.0 % of the visible pairs", "gather: forward",
                            "  forward: 33.6 MB", "ulysses: forward"}) {
    EXPECT_NE(said.find(words), std::string::npos) << words << "\n" << said;
  }
  EXPECT_THROW(static_cast<void>(explain(kLine, Layout::zigzag(16383, 2))), Error);
  EXPECT_THROW(static_cast<void>(visibility_of("fwd b1 h2 s5x7 d8 fp32")), Error);
  EXPECT_THROW(static_cast<void>(layout_from_name("spiral", 8, 2)), Error);
  for (const Scheme s : {Scheme::gather, Scheme::ring, Scheme::ulysses})
    EXPECT_EQ(scheme_from_name(context_parallel::name_of(s)), s);
  EXPECT_THROW(static_cast<void>(scheme_from_name("star")), Error);
}

}  // namespace
}  // namespace onepass::inline v0::context_parallel::test
