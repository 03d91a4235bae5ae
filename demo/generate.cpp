// Generates from a paged cache in C++: the calls of an inference engine, in small.
//
// A decoder with random weights. Sequences join a running batch when there are pages for them and leave when they are
// finished; whole prompts and single tokens go through one step together. In each layer append_kv rotates and writes
// the new keys and values and rotates the queries, and attention() reads through the page table. At the end every logit
// that a token was chosen by is compared with a forward pass over the whole text, without a cache. demo/generate.py is
// the same in Python.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "onepass/onepass.hpp"

namespace {

using namespace onepass;
using Numbers = std::vector<float>;
using Ints = std::vector<std::int32_t>;

constexpr std::int64_t kWords = 64, kWidth = 64, kLayers = 2, kHeads = 4, kHeadsKv = 2, kDim = 16, kPageSize = 8,
                       kPages = 40, kMaxPages = 12, kPositions = kMaxPages * kPageSize;
constexpr std::int64_t kQkv = (kHeads + 2 * kHeadsKv) * kDim;

// rows x inner times inner x columns
Numbers product(const Numbers& a, const Numbers& b, std::int64_t inner, std::int64_t columns) {
  const std::int64_t rows = static_cast<std::int64_t>(a.size()) / inner;
  Numbers c(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t k = 0; k < inner; ++k)
      for (std::int64_t j = 0; j < columns; ++j) c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
  return c;
}
Numbers normed(Numbers x) {
  for (std::size_t row = 0; row < x.size(); row += kWidth) {
    const float squares = std::inner_product(&x[row], &x[row] + kWidth, &x[row], 1e-6f * kWidth);
    for (std::size_t i = row; i < row + kWidth; ++i) x[i] /= std::sqrt(squares / kWidth);
  }
  return x;
}

struct Decoder {
  struct Layer {
    Numbers qkv, out, up, down;
  };
  Numbers embedding, to_words, cos, sin;
  std::vector<Layer> layers;

  Decoder() : embedding(kWords * kWidth), to_words(kWidth * kWords), cos(kPositions * kDim / 2), sin(cos.size()) {
    std::mt19937 random(1);
    const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
      std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(rows)));
      Numbers m(static_cast<std::size_t>(rows * columns));
      for (float& x : m) x = normal(random);
      return m;
    };
    to_words = matrix(kWidth, kWords);
    for (std::int64_t i = 0; i < kWords; ++i)
      for (std::int64_t j = 0; j < kWidth; ++j) embedding[i * kWidth + j] = to_words[j * kWords + i];
    for (std::int64_t n = 0; n < kLayers; ++n)
      layers.push_back({matrix(kWidth, kQkv), matrix(kHeads * kDim, kWidth), matrix(kWidth, 4 * kWidth),
                        matrix(4 * kWidth, kWidth)});
    for (std::int64_t position = 0; position < kPositions; ++position) {
      for (std::int64_t i = 0; i < kDim / 2; ++i) {
        const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim);
        cos[position * kDim / 2 + i] = static_cast<float>(std::cos(angle));
        sin[position * kDim / 2 + i] = static_cast<float>(std::sin(angle));
      }
    }
  }

  // [tokens][words]. attend(layer, qkv, out) sees to positions, cache and mask: [tokens][heads + 2 heads_kv][dim] in,
  // [tokens][heads][dim] out.
  template <class Attend>
  Numbers logits(const Ints& tokens, const Attend& attend) const {
    Numbers x;
    for (const std::int32_t token : tokens)
      x.insert(x.end(), &embedding[token * kWidth], &embedding[token * kWidth] + kWidth);
    for (std::int64_t n = 0; n < kLayers; ++n) {
      const Layer& layer = layers[static_cast<std::size_t>(n)];
      Numbers qkv = product(normed(x), layer.qkv, kWidth, kQkv), mixed(tokens.size() * kHeads * kDim);
      attend(n, qkv, mixed);
      const Numbers added = product(mixed, layer.out, kHeads * kDim, kWidth);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += added[i];
      Numbers hidden = product(normed(x), layer.up, kWidth, 4 * kWidth);
      for (float& h : hidden) h = std::max(h, 0.0f);
      const Numbers more = product(hidden, layer.down, 4 * kWidth, kWidth);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += more[i];
    }
    return product(normed(x), to_words, kWidth, kWords);
  }
};

// The q, k or v of a fused projection: a view [tokens, heads, dim].
Tensor slice(Numbers& qkv, std::int64_t first, std::int64_t heads) {
  Tensor t(qkv.data() + first * kDim, DType::f32, {static_cast<std::int64_t>(qkv.size()) / kQkv, heads, kDim});
  t.stride = {kQkv, kDim, 1, 0};
  return t;
}
template <class T>
ConstTensor ints(const T& x) {
  return ConstTensor(x.data(), DType::i32, {static_cast<std::int64_t>(x.size())});
}

struct Sequence {
  Ints tokens, pages;
  std::size_t prompt, wanted, cached = 0;  // cached: tokens whose keys and values are in the pages
  Numbers logits{};                        // of the tokens that were chosen
};

class Engine {
 public:
  explicit Engine(const Decoder& decoder) : decoder_(decoder), free_(kPages) {
    std::iota(free_.begin(), free_.end(), 0);
  }
  bool join(Sequence& s) {
    const std::size_t needed = (s.prompt + s.wanted + kPageSize - 1) / kPageSize;
    if (needed > free_.size()) return false;
    s.pages.assign(free_.end() - static_cast<std::ptrdiff_t>(needed), free_.end());
    free_.resize(free_.size() - needed);
    running_.push_back(&s);
    return true;
  }
  bool idle() const { return running_.empty(); }

  // One token more for every running sequence.
  void step() {
    Ints tokens, cu_seqlens{0}, before, after, table;
    for (const Sequence* s : running_) {
      tokens.insert(tokens.end(), s->tokens.begin() + static_cast<std::ptrdiff_t>(s->cached), s->tokens.end());
      cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
      before.push_back(static_cast<std::int32_t>(s->cached));
      after.push_back(static_cast<std::int32_t>(s->tokens.size()));
      table.insert(table.end(), s->pages.begin(), s->pages.end());
      table.resize(before.size() * kMaxPages, -1);
    }
    const ConstTensor page_table(table.data(), DType::i32, {static_cast<std::int64_t>(before.size()), kMaxPages});
    const Numbers all = decoder_.logits(tokens, [&](std::int64_t n, Numbers& qkv, Numbers& out) {
      AppendTensors a;
      a.q = a.q_out = slice(qkv, 0, kHeads);
      a.k_new = slice(qkv, kHeads, kHeadsKv);
      a.v_new = slice(qkv, kHeads + kHeadsKv, kHeadsKv);
      a.k = Tensor(k_[n].data(), DType::f32, {kPages, kPageSize, kHeadsKv, kDim});
      a.v = Tensor(v_[n].data(), DType::f32, {kPages, kPageSize, kHeadsKv, kDim});
      a.cu_seqlens_q = ints(cu_seqlens);
      a.seqused_k = ints(before);
      a.page_table = page_table;
      a.cos = ConstTensor(decoder_.cos.data(), DType::f32, {kPositions, kDim / 2});
      a.sin = ConstTensor(decoder_.sin.data(), DType::f32, {kPositions, kDim / 2});
      append_kv(a);
      Tensors t;
      t.q = a.q, t.k = a.k, t.v = a.v;
      t.out = Tensor(out.data(), DType::f32, {static_cast<std::int64_t>(tokens.size()), kHeads, kDim});
      t.cu_seqlens_q = a.cu_seqlens_q, t.seqused_k = ints(after), t.page_table = page_table;
      attention(t, {.band = {.causal = true}});
    });
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Sequence& s = *running_[i];
      const float* const row = &all[static_cast<std::size_t>(cu_seqlens[i + 1] - 1) * kWords];
      s.cached = s.tokens.size();
      s.logits.insert(s.logits.end(), row, row + kWords);
      s.tokens.push_back(static_cast<std::int32_t>(std::max_element(row, row + kWords) - row));
      if (s.tokens.size() == s.prompt + s.wanted) free_.insert(free_.end(), s.pages.begin(), s.pages.end());
    }
    std::erase_if(running_, [](const Sequence* s) { return s->tokens.size() == s->prompt + s->wanted; });
  }

 private:
  const Decoder& decoder_;
  Ints free_;
  std::vector<Sequence*> running_;
  std::vector<Numbers> k_{kLayers, Numbers(kPages* kPageSize* kHeadsKv* kDim, NAN)}, v_ = k_;
};

// How far the logits of the chosen tokens are from those of one pass over the whole text.
float worst_of(const Decoder& decoder, const Sequence& s) {
  const Ints text(s.tokens.begin(), s.tokens.end() - 1);
  const Numbers all = decoder.logits(text, [&](std::int64_t, Numbers& qkv, Numbers& out) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      for (std::int64_t h = 0; h < kHeads + kHeadsKv; ++h) {  // rotated here, by hand
        float* const x = &qkv[i * kQkv + static_cast<std::size_t>(h * kDim)];
        for (std::size_t d = 0; d < kDim / 2; ++d) {
          const float c = decoder.cos[i * kDim / 2 + d], sn = decoder.sin[i * kDim / 2 + d], low = x[d];
          x[d] = low * c - x[d + kDim / 2] * sn;
          x[d + kDim / 2] = x[d + kDim / 2] * c + low * sn;
        }
      }
    }
    const auto heads_first = [](Tensor t) {  // [tokens, heads, dim] as [1, heads, tokens, dim]
      t.rank = 4;
      t.shape = {1, t.shape[1], t.shape[0], kDim};
      t.stride = {0, t.stride[1], t.stride[0], 1};
      return t;
    };
    Tensors t;
    t.q = heads_first(slice(qkv, 0, kHeads));
    t.k = heads_first(slice(qkv, kHeads, kHeadsKv));
    t.v = heads_first(slice(qkv, kHeads + kHeadsKv, kHeadsKv));
    t.out = heads_first(Tensor(out.data(), DType::f32, {static_cast<std::int64_t>(text.size()), kHeads, kDim}));
    attention(t, {.band = {.causal = true}});
  });
  float worst = 0;
  for (std::size_t i = 0; i < s.logits.size(); ++i) {
    const float apart = std::abs(s.logits[i] - all[(s.prompt - 1) * kWords + i]);
    if (!std::isfinite(apart)) return INFINITY;  // the pool holds NaN where no key is
    worst = std::max(worst, apart);
  }
  return worst;
}

}  // namespace

int main() {
  const Decoder decoder;
  Engine engine(decoder);
  std::mt19937 random(2);
  std::vector<Sequence> sequences;
  for (int i = 0; i < 8; ++i) {
    const std::size_t prompt = 1 + random() % 50, wanted = 10 + random() % 30;
    Ints tokens(prompt);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % kWords);
    sequences.push_back({tokens, {}, prompt, wanted});
  }
  std::size_t joined = 0, steps = 0;
  for (;; ++steps) {
    while (joined < sequences.size() && engine.join(sequences[joined])) ++joined;
    if (engine.idle()) break;
    engine.step();
  }
  float worst = 0;
  for (const Sequence& s : sequences) worst = std::max(worst, worst_of(decoder, s));
  std::printf("%zu sequences in %zu steps; logits are within %.1e of a forward pass over the whole texts\n",
              sequences.size(), steps, static_cast<double>(worst));
  return worst < 1e-4f ? 0 : 1;
}
