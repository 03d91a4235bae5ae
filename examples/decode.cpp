// Decoding from a cache in pages: each step appends the keys and values of one token per sequence, then attends.
#include <onepass/onepass.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

namespace {
constexpr std::int64_t kBatch = 2, kHeads = 8, kHeadsKv = 2, kDim = 64, kPageSize = 16, kPages = 8, kSteps = 40;

std::vector<float> drawn(std::int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& number : x) number = normal(random);
  return x;
}
}  // namespace

int main() {
  std::mt19937 random(1);
  // Pages that are not used yet hold NaN; nothing of it is read.
  std::vector<float> pool_k(kPages * kPageSize * kHeadsKv * kDim, NAN), pool_v = pool_k;
  const std::vector<std::int32_t> table = {6, 1, 4, 3, 0, 7, 2, 5};  // four pages for each sequence, anywhere
  std::vector<std::int32_t> used(kBatch, 0);
  std::vector<float> out(kBatch * kHeads * kDim), q, seen_k, seen_v;  // seen: sequence 0 without pages, to compare

  for (std::int64_t step = 0; step < kSteps; ++step) {
    q = drawn(kBatch * kHeads * kDim, random);
    const std::vector<float> k = drawn(kBatch * kHeadsKv * kDim, random), v = drawn(kBatch * kHeadsKv * kDim, random);
    seen_k.insert(seen_k.end(), k.begin(), k.begin() + kHeadsKv * kDim);
    seen_v.insert(seen_v.end(), v.begin(), v.begin() + kHeadsKv * kDim);

    const auto lengths = onepass::view(std::as_const(used).data(), {kBatch});
    const auto pages = onepass::view(table.data(), {kBatch, kPages / kBatch});
    onepass::append_kv({.k_new = onepass::view(k.data(), {kBatch, kHeadsKv, 1, kDim}),
                        .v_new = onepass::view(v.data(), {kBatch, kHeadsKv, 1, kDim}),
                        .k = onepass::view(pool_k.data(), {kPages, kPageSize, kHeadsKv, kDim}),
                        .v = onepass::view(pool_v.data(), {kPages, kPageSize, kHeadsKv, kDim}),
                        .cache_seqlens = lengths,
                        .page_table = pages});
    for (std::int32_t& length : used) ++length;
    onepass::attention({.q = onepass::view(q.data(), {kBatch, kHeads, 1, kDim}),
                        .k = onepass::view(pool_k.data(), {kPages, kPageSize, kHeadsKv, kDim}),
                        .v = onepass::view(pool_v.data(), {kPages, kPageSize, kHeadsKv, kDim}),
                        .out = onepass::view(out.data(), {kBatch, kHeads, 1, kDim}),
                        .seqused_k = lengths,
                        .page_table = pages});
  }

  // The last step of sequence 0 in one call without a cache: memory is [tokens, heads, dim].
  std::vector<float> expected(kHeads * kDim);
  onepass::attention({.q = onepass::view(q.data(), {1, kHeads, 1, kDim}),
                      .k = onepass::view(seen_k.data(), {1, kSteps, kHeadsKv, kDim}).permuted({0, 2, 1, 3}),
                      .v = onepass::view(seen_v.data(), {1, kSteps, kHeadsKv, kDim}).permuted({0, 2, 1, 3}),
                      .out = onepass::view(expected.data(), {1, kHeads, 1, kDim})});
  float worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) worst = std::max(worst, std::abs(out[i] - expected[i]));
  std::printf("%lld steps, off by %g\n", static_cast<long long>(kSteps), static_cast<double>(worst));
  return worst < 1e-5f ? 0 : 1;
}
