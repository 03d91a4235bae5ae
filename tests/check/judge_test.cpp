// The rule must reject what is wrong: a small tiled kernel that is right, and the same with one mistake at a time.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "algebra/entropy.hpp"
#include "algebra/numerics.hpp"
#include "algebra/scalar.hpp"
#include "check/check.hpp"
#include "reference/reference.hpp"

namespace onepass::check {
namespace {

// clang-format off: it changes such a list every time
#define ONEPASS_MISTAKES(X)                                                                                    \
  X(none)                                                                                                      \
  X(zero_output) X(mean_of_v) X(swapped_tile) X(missing_rescale) X(late_maximum) X(dropped_last_key)           \
      X(one_key_too_many) X(unmasked_row) X(wrong_head) X(one_nan) X(one_element) X(two_percent_more)          \
          X(empty_row_not_zero) X(empty_row_nan) X(lse_base_2) X(lse_without_log) X(lse_off) X(row_max_base_2) \
              X(row_max_off) X(row_max_of_the_first_tile) X(entropy_base_2) X(entropy_off) X(entropy_not_moved) X(writes_gap) X(writes_guard) X(writes_lse_guard)    \
                  X(writes_workspace_guard) X(reads_gap) X(unwritten_row) X(narrow_accumulator) X(throws)
// clang-format on
#define ONEPASS_AS_ENTRY(name) name,
#define ONEPASS_AS_NAME(name) #name,
enum class Mistake { ONEPASS_MISTAKES(ONEPASS_AS_ENTRY) };
constexpr const char* kMistakeNames[] = {ONEPASS_MISTAKES(ONEPASS_AS_NAME)};
std::ostream& operator<<(std::ostream& out, Mistake m) { return out << kMistakeNames[static_cast<int>(m)]; }

Mistake g_mistake;  // what the implementation below does wrong
bool made(Mistake m) { return g_mistake == m; }

constexpr std::int64_t kTile = 32;

void one_row(const Problem& p, const Tensors& a, const Sequence& seq, std::int64_t b, std::int64_t h, std::int64_t i) {
  const std::int64_t hk = made(Mistake::wrong_head) ? h % p.heads_kv : h / p.group();
  BandMask band = band_mask(p, seq.seq_q, seq.seq_k);
  if (made(Mistake::one_key_too_many) && band.right >= 0) ++band.right;
  const std::int64_t keys = seq.seq_k - (made(Mistake::dropped_last_key) ? 1 : 0);
  const auto at = [&](const ConstTensor& t, std::int64_t head, std::int64_t token, std::int64_t d) {
    return load_element(t.data, t.dtype, row_offset(t, seq.batch, head, token) + d);
  };
  RowState<float> state;
  float first_max = Arith<float>::neg_inf(), terms = 0;  // terms: algebra/entropy.hpp
  std::vector<float> o(p.dim_v);
  const auto absorb_tile = [&](std::int64_t tile) {
    const std::int64_t from = tile * kTile, n = std::min(kTile, keys - from);
    // "swapped": scores of this tile, values of the neighbouring one.
    const std::int64_t values =
        made(Mistake::swapped_tile) && (tile ^ 1) * kTile + n <= keys ? (tile ^ 1) * kTile : from;
    float s[kTile], top = Arith<float>::neg_inf(), sum = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      float dot = 0;
      for (std::int64_t d = 0; d < p.dim_qk; ++d)
        dot += at(a.q, h, seq.q_begin + i, d) * at(a.k, hk, seq.k_begin + from + j, d);
      const Dims m = p.bool_mask ? broadcast_strides(a.bool_mask) : Dims{};
      const bool seen = made(Mistake::unmasked_row) ||
                        (band.visible(i, from + j) &&
                         (!p.bool_mask || static_cast<const std::uint8_t*>(
                                              a.bool_mask.data)[b * m[0] + h * m[1] + i * m[2] + (from + j) * m[3]]));
      s[j] = seen ? dot * static_cast<float>(p.effective_scale() * kLog2e) : Arith<float>::neg_inf();
      top = std::max(top, s[j]);
    }
    if (made(Mistake::late_maximum) && state.m != Arith<float>::neg_inf()) top = state.m;
    const float before = state.m;
    const auto r = advance(state, top);
    const auto exponent = [&](float score) { return std::max(score - r.m_ref, static_cast<float>(kLeastExponent)); };
    if (!made(Mistake::entropy_not_moved)) terms = terms * r.alpha + state.l * exponent(before);
    if (tile == 0) first_max = state.m;
    for (float& x : o) x *= made(Mistake::missing_rescale) ? 1 : r.alpha;
    for (std::int64_t j = 0; j < n; ++j) {
      const float w = weight(s[j], r);
      sum += w;
      terms += w * exponent(s[j]);
      for (std::int64_t d = 0; d < p.dim_v && w != 0; ++d) {
        o[d] += w * at(a.v, hk, seq.k_begin + values + j, d);
        if (made(Mistake::narrow_accumulator)) o[d] = to_float(from_float<bf16>(o[d]));
      }
    }
    absorb(state, sum);
  };
  for (std::int64_t tile = 0; tile * kTile < keys; ++tile) absorb_tile(tile);

  const Final<float> f = finalize(state);
  const std::int64_t out = row_offset(a.out, seq.batch, h, seq.q_begin + i);
  if (made(Mistake::unwritten_row) && i == 5) return;
  for (std::int64_t d = 0; d < p.dim_v; ++d) {
    float x = o[d] * f.inv_l;
    if (made(Mistake::zero_output)) x = 0;
    if (made(Mistake::mean_of_v)) {
      x = 0;
      for (std::int64_t j = 0; j < keys; ++j) x += at(a.v, hk, seq.k_begin + j, d) / static_cast<float>(keys);
    }
    if (made(Mistake::one_nan) && h == 1 && i == 7 && d == 3) x = std::numeric_limits<float>::quiet_NaN();
    if (made(Mistake::one_element) && h == 1 && i == 7 && d == 3) x += 0.25f;
    if (made(Mistake::two_percent_more)) x *= 1.0f + 0.02f;
    if (made(Mistake::empty_row_not_zero) && state.l == 0) x = 1e-30f;
    if (made(Mistake::empty_row_nan) && state.l == 0) x = 0 / state.l;
    if (made(Mistake::reads_gap) && i == 9 && d == 0)
      x += load_element(a.v.data, a.v.dtype, row_offset(a.v, seq.batch, hk, seq.k_begin) + p.dim_v);
    store_element(a.out.data, a.out.dtype, out + d, x);
  }
  if (made(Mistake::writes_gap) && i == 9) store_element(a.out.data, a.out.dtype, out + p.dim_v, 0);
  if (p.want_row_max) {
    float most = made(Mistake::row_max_of_the_first_tile) ? first_max : state.m;
    if (!made(Mistake::row_max_base_2)) most *= static_cast<float>(kLn2);
    if (made(Mistake::row_max_off)) most += 1e-4f;
    static_cast<float*>(a.row_max.data)[lse_offset(a.row_max, seq.batch, h, seq.q_begin + i)] = most;
  }
  if (p.entropy) {
    float nats = std::max(0.0f, entropy(state.l, terms));
    if (made(Mistake::entropy_base_2)) nats *= static_cast<float>(kLog2e);
    if (made(Mistake::entropy_off)) nats += 1e-3f;
    static_cast<float*>(a.entropy.data)[lse_offset(a.entropy, seq.batch, h, seq.q_begin + i)] = nats;
  }
  if (!p.want_lse) return;
  float lse = f.lse;
  if (made(Mistake::lse_base_2)) lse *= static_cast<float>(kLog2e);
  if (made(Mistake::lse_without_log)) lse = state.m * static_cast<float>(kLn2);
  if (made(Mistake::lse_off)) lse += 1e-4f;
  if (made(Mistake::empty_row_nan) && state.l == 0) lse = INFINITY;
  static_cast<float*>(a.lse.data)[lse_offset(a.lse, seq.batch, h, seq.q_begin + i)] = lse;
}

void run_tiled(const Problem& p, const Tensors& a, void* workspace, Executor&, void*) {
  if (made(Mistake::throws)) throw Error(ErrorCode::unsupported, "it throws");
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence_of(p, a, b);
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      for (std::int64_t i = 0; i < seq.seq_q; ++i) one_row(p, a, seq, b, h, i);
    }
  }
  if (made(Mistake::writes_guard)) static_cast<std::byte*>(a.out.data)[-3] = std::byte{0};
  if (made(Mistake::writes_lse_guard)) static_cast<float*>(a.lse.data)[-1] = 0;
  if (made(Mistake::writes_workspace_guard)) static_cast<std::byte*>(workspace)[-1] = std::byte{0};
}

struct Tiled final : PlanState {
  explicit Tiled(const Request& request) : PlanState(request.problem) { workspace_bytes = 40; }
  std::string describe() const override { return ""; }
  void run(const Tensors& tensors, void* workspace, Executor& executor, void* stream) const override {
    run_tiled(*problem, tensors, workspace, executor, stream);
  }
};
const Implementation kTiled{"tiled",
                            [](const Request& request) { return Decision{{}, std::make_shared<Tiled>(request)}; }};

Verdict verdict_of(Mistake mistake, const char* line, Distribution distribution) {
  g_mistake = mistake;
  Inputs inputs = make_inputs(parse_problem(line), 3, distribution);
  const Verdict verdict = check(kTiled, inputs, serial_executor());
  g_mistake = Mistake::none;
  return verdict;
}

constexpr const char* kStrided =
    "b2 h4/2 s33x129 d64/40 fp32 causal_bottom_right lse row_max entropy "
    "strides=q:20000,5000,70;k:30000,9000,64;v:20000,7000,50;o:20000,2000,41";
constexpr const char* kLines[] = {
    kStrided,
    "b2 h4/2 s65x129 d64/40 bf16 causal_bottom_right mask=b1qk lse row_max entropy layout=bshd",
    "b2 h4/2 s128 d40 fp16 mask=bhqk lse row_max entropy",
};
constexpr const char* kMasked = kLines[1];
constexpr const char* kHalf = kLines[2];

TEST(Judge, AcceptsARightTiledKernel) {
  for (const char* line : kLines) {
    for (Distribution d : kDistributions) {
      const Verdict v = verdict_of(Mistake::none, line, d);
      EXPECT_TRUE(v.right) << line << " " << name_of(d) << ": " << v.sentence;
      EXPECT_TRUE(v.max_base > 0 || d == Distribution::huge) << line;  // huge: one key, exactly
    }
  }
}

TEST(Judge, AcceptsTheReference) {
  for (const char* line : kLines) {
    Inputs inputs = make_inputs(parse_problem(line), 1);
    const Verdict v = check(reference::reference_implementations()[0], inputs);
    EXPECT_TRUE(v.right) << line << ": " << v.sentence;
  }
}

class Rejects : public testing::TestWithParam<Mistake> {};
TEST_P(Rejects, InEveryDtype) {
  for (const char* line : kLines) {
    for (Distribution d : {Distribution::normal, Distribution::rising}) {
      EXPECT_FALSE(verdict_of(GetParam(), line, d).right) << line << " " << name_of(d);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    Judge, Rejects,
    testing::Values(Mistake::zero_output, Mistake::mean_of_v, Mistake::swapped_tile, Mistake::dropped_last_key,
                    Mistake::wrong_head, Mistake::one_nan, Mistake::one_element, Mistake::lse_base_2, Mistake::lse_off,
                    Mistake::row_max_base_2, Mistake::row_max_off, Mistake::row_max_of_the_first_tile,
                    Mistake::entropy_base_2, Mistake::entropy_off, Mistake::entropy_not_moved, Mistake::writes_guard,
                    Mistake::writes_lse_guard, Mistake::unwritten_row, Mistake::unmasked_row,
                    Mistake::writes_workspace_guard, Mistake::throws),
    [](const auto& mistake) { return std::string(kMistakeNames[static_cast<int>(mistake.param)]); });

TEST(Judge, RejectsAMissingRescale) {
  for (const char* line : kLines) {
    EXPECT_FALSE(verdict_of(Mistake::missing_rescale, line, Distribution::rising).right) << line;
    EXPECT_FALSE(verdict_of(Mistake::missing_rescale, line, Distribution::normal).right) << line;
  }
}
// Without the true maximum, weights overflow as soon as scores are large.
TEST(Judge, RejectsAFixedMaximum) {
  EXPECT_FALSE(verdict_of(Mistake::late_maximum, kStrided, Distribution::huge).right);
}
TEST(Judge, RejectsAnLseWithoutItsLogarithm) {
  EXPECT_FALSE(verdict_of(Mistake::lse_without_log, kStrided, Distribution::normal).right);
}
TEST(Judge, RejectsAMaskOffByOne) {
  for (Distribution d : {Distribution::normal, Distribution::rising}) {
    EXPECT_FALSE(verdict_of(Mistake::one_key_too_many, kStrided, d).right) << name_of(d);
    EXPECT_FALSE(verdict_of(Mistake::one_key_too_many, kMasked, d).right) << name_of(d);
  }
}
TEST(Judge, RejectsWrongEmptyRows) {
  EXPECT_FALSE(verdict_of(Mistake::empty_row_not_zero, kMasked, Distribution::normal).right);
  EXPECT_FALSE(verdict_of(Mistake::empty_row_nan, kMasked, Distribution::normal).right);
}
TEST(Judge, RejectsReadingAndWritingGaps) {
  EXPECT_FALSE(verdict_of(Mistake::reads_gap, kStrided, Distribution::normal).right);
  EXPECT_FALSE(verdict_of(Mistake::writes_gap, kStrided, Distribution::normal).right);
}
TEST(Judge, RejectsASmallErrorEverywhere) {
  for (const char* line : kLines)
    EXPECT_FALSE(verdict_of(Mistake::two_percent_more, line, Distribution::normal).right) << line;
}
// Sums rounded to bf16 at every step. (With bf16 inputs the base itself rounds the weights as coarsely.)
TEST(Judge, RejectsANarrowAccumulator) {
  EXPECT_FALSE(verdict_of(Mistake::narrow_accumulator, kStrided, Distribution::rising).right);
  EXPECT_FALSE(verdict_of(Mistake::narrow_accumulator, kHalf, Distribution::rising).right);
}
TEST(Judge, RejectsWrongValuesInOneHotRows) {
  for (Mistake m : {Mistake::zero_output, Mistake::mean_of_v, Mistake::swapped_tile, Mistake::wrong_head}) {
    for (const char* line : kLines) EXPECT_FALSE(verdict_of(m, line, Distribution::one_hot).right) << line;
  }
}

TEST(Judge, NamesTheFirstViolation) {
  const Verdict v = verdict_of(Mistake::one_nan, kStrided, Distribution::normal);
  EXPECT_NE(v.sentence.find("out[0, 1, 7, 3] is nan but the reference is"), std::string::npos) << v.sentence;
  EXPECT_EQ(verdict_of(Mistake::writes_gap, kStrided, Distribution::normal).sentence,
            "a gap between the rows of out was written");
  EXPECT_EQ(verdict_of(Mistake::writes_lse_guard, kStrided, Distribution::normal).sentence,
            "bytes around lse were written");
}

TEST(Check, PassesARefusalOn) {
  const Implementation refusing{"refusing", [](const Request&) { return Decision::no("it wants more"); }};
  Inputs inputs = make_inputs(parse_problem("b1 h1 s4 d8"));
  const Verdict v = check(refusing, inputs);
  EXPECT_FALSE(v.accepted);
  EXPECT_FALSE(v.right);
  EXPECT_EQ(v.sentence, "it wants more");
}

}  // namespace
}  // namespace onepass::check
