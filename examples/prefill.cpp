// A prompt: causal attention with grouped heads, planned once and run for every layer of a model.
#include <onepass/onepass.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

int main() {
  const std::int64_t batch = 2, heads = 8, heads_kv = 2, tokens = 200, dim = 64;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto drawn = [&](std::int64_t count) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& number : x) number = normal(random);
    return x;
  };
  const std::vector<float> q = drawn(batch * tokens * heads * dim), k = drawn(batch * tokens * heads_kv * dim), v = k;
  std::vector<float> out(q.size()), lse(static_cast<std::size_t>(batch * heads * tokens));

  // Memory is [batch, tokens, heads, dim], as a projection leaves it; a view says so by its strides. Nothing is copied.
  onepass::AttentionTensors t;
  t.q = onepass::view(q.data(), {batch, tokens, heads, dim}).permuted({0, 2, 1, 3});
  t.k = onepass::view(k.data(), {batch, tokens, heads_kv, dim}).permuted({0, 2, 1, 3});
  t.v = onepass::view(v.data(), {batch, tokens, heads_kv, dim}).permuted({0, 2, 1, 3});
  t.out = onepass::view(out.data(), {batch, tokens, heads, dim}).permuted({0, 2, 1, 3});
  t.lse = onepass::view(lse.data(), {batch, heads, tokens});

  const onepass::Plan plan = onepass::make_plan(t, {.band = {.causal = true}});
  std::printf("%s\n", plan.describe().c_str());
  onepass::WorkspaceMemory workspace;
  for (int layer = 0; layer < 3; ++layer) onepass::run(plan, t, {.workspace = workspace.of(plan)});

  // The first token sees only itself: its output is its value, and its LSE is its score.
  float worst = 0, score = 0;
  for (std::int64_t d = 0; d < dim; ++d) {
    const auto at = static_cast<std::size_t>(d);
    worst = std::max(worst, std::abs(out[at] - v[at]));
    score += q[at] * k[at] / std::sqrt(static_cast<float>(dim));
  }
  std::printf("first token: output off by %g, LSE off by %g\n", static_cast<double>(worst),
              static_cast<double>(std::abs(lse[0] - score)));
  return worst < 1e-6f && std::abs(lse[0] - score) < 1e-4f ? 0 : 1;
}
