// Gradients of q, k and v: the backward takes the inputs and the results of the forward, and nothing else.
#include <onepass/onepass.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

namespace {
constexpr std::int64_t kHeads = 2, kTokens = 30, kDim = 16;
using Numbers = std::vector<float>;

Numbers drawn(std::mt19937& random) {
  std::normal_distribution<float> normal;
  Numbers x(kHeads * kTokens * kDim);
  for (float& number : x) number = normal(random);
  return x;
}

struct Model {
  Numbers q, k, v, dout, out = Numbers(q.size()), lse = Numbers(kHeads * kTokens);
  onepass::Attention options{.band = {.causal = true}, .softcap = 5.0f};

  onepass::AttentionTensors tensors() {
    const auto view = [](auto& x) { return onepass::view(x.data(), {1, kHeads, kTokens, kDim}); };
    onepass::AttentionTensors t;
    t.q = view(q), t.k = view(k), t.v = view(v), t.out = view(out);
    t.lse = onepass::view(lse.data(), {1, kHeads, kTokens});
    return t;
  }
  // The sum of out * dout, whose gradient by out is dout.
  double loss() {
    onepass::attention(tensors(), options);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += static_cast<double>(out[i]) * static_cast<double>(dout[i]);
    return sum;
  }
};
}  // namespace

int main() {
  std::mt19937 random(1);
  Model m{.q = drawn(random), .k = drawn(random), .v = drawn(random), .dout = drawn(random)};
  m.loss();  // the forward: out and lse
  Numbers dq(m.q.size()), dk(m.k.size()), dv(m.v.size());
  onepass::AttentionTensors t = m.tensors();
  const auto view = [](auto& x) { return onepass::view(x.data(), {1, kHeads, kTokens, kDim}); };
  t.dout = view(m.dout), t.dq = view(dq), t.dk = view(dk), t.dv = view(dv);
  onepass::attention_backward(t, m.options);

  // Some elements by central differences of the loss.
  double worst = 0;
  const float step = 1e-2f;
  for (const auto& [x, gradient] : {std::pair{&m.q, &dq}, {&m.k, &dk}, {&m.v, &dv}}) {
    for (std::size_t i = 7; i < x->size(); i += 97) {
      const float before = (*x)[i];
      (*x)[i] = before + step;
      const double above = m.loss();
      (*x)[i] = before - step;
      const double below = m.loss();
      (*x)[i] = before;
      const double difference = (above - below) / (2 * static_cast<double>(step));
      worst = std::max(worst, std::abs(difference - static_cast<double>((*gradient)[i])));
    }
  }
  std::printf("gradients and differences are %.1e apart\n", worst);
  return worst < 5e-3 ? 0 : 1;
}
