// A small inference engine in C++: what a program calls in each step, by the public headers alone.
//
// Sequences join a running batch when there are pages for them, and leave it when they are finished. A step has single
// tokens with a tree of drafts of what may follow them, and chunks of prompts, up to a number of rows. In each layer
// append_kv rotates and writes the new keys and values and rotates the queries, and one attention() reads through the
// page table. At the end every logit that a token was chosen by is compared with dense attention over the whole text of
// its sequence, without a cache, pages or drafts.
//
//   ./dev demo engine [--sequences 12] [--tokens 60] [--rows 64] [--drafts 6] [--branches 2] [--pages 60]
//                     [--page-size 16] [--device cpu|cuda] [--seed 2]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "engine.hpp"

namespace engine {
namespace {

// How far the logits of the chosen tokens are from those of one pass over the whole text on the CPU, rotated by hand.
float worst_of(const Decoder& decoder, const Sequence& s) {
  const Ints text(s.tokens.begin(), s.tokens.end() - 1);
  const Numbers all = decoder.logits(text, [&](std::size_t, Numbers& qkv, Numbers& out) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      for (std::int64_t h = 0; h < kHeads + kHeadsKv; ++h) {
        float* const x = &qkv[i * kQkv + static_cast<std::size_t>(h * kDim)];
        for (std::size_t d = 0; d < kDim / 2; ++d) {
          const float c = decoder.cos[i * kDim / 2 + d], sn = decoder.sin[i * kDim / 2 + d], low = x[d];
          x[d] = low * c - x[d + kDim / 2] * sn;
          x[d + kDim / 2] = x[d + kDim / 2] * c + low * sn;
        }
      }
    }
    const auto dense = [&](float* x, std::int64_t heads, std::int64_t row) {  // [1, heads, tokens, dim]
      return View<float>(x, {1, heads, std::ssize(text), kDim}, {0, kDim, row, 1});
    };
    onepass::attention({.q = dense(qkv.data(), kHeads, kQkv),
                        .k = dense(qkv.data() + kHeads * kDim, kHeadsKv, kQkv),
                        .v = dense(qkv.data() + (kHeads + kHeadsKv) * kDim, kHeadsKv, kQkv),
                        .out = dense(out.data(), kHeads, kHeads * kDim)},
                       {.band = {.causal = true}});
  });
  float worst = 0;
  for (std::size_t i = 0; i < s.logits.size(); ++i) {
    const float apart = std::abs(s.logits[i] - all[(s.prompt - 1) * kWords + i]);
    if (!std::isfinite(apart)) return INFINITY;  // the pool holds NaN where no key is
    worst = std::max(worst, apart);
  }
  return worst;
}

int run(const std::map<std::string, std::string>& options) {
  const auto number = [&](const char* name) { return static_cast<std::size_t>(std::stoul(options.at(name))); };
  const Limits limits{number("--pages"), number("--page-size"), number("--rows"), number("--drafts"),
                      number("--branches")};
  const std::size_t tokens = number("--tokens");
  const auto cuda = options.at("--device") == "cuda" ? std::make_unique<Cuda>() : nullptr;
  std::mt19937 random(static_cast<unsigned>(number("--seed")));
  std::deque<Sequence> sequences(number("--sequences"));
  Decoder decoder(static_cast<std::int64_t>(200 + 2 * tokens));
  Engine engine(decoder, limits, cuda.get());
  for (Sequence& s : sequences) {
    s.prompt = 1 + random() % 199, s.wanted = tokens / 2 + 1 + random() % tokens;
    for (std::size_t i = 0; i < s.prompt; ++i) s.tokens.push_back(static_cast<std::int32_t>(random() % kWords));
    engine.scheduler.add(s);
  }
  std::size_t steps = 0, made = 0;
  const auto start = std::chrono::steady_clock::now();
  for (; !engine.scheduler.idle(); ++steps) {
    const std::size_t rows = engine.step();
    if (steps % 20 == 0)
      std::printf("step %4zu: %3zu rows, %3zu of %zu pages free\n", steps + 1, rows, engine.scheduler.free_pages(),
                  limits.pages);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  float worst = 0;
  for (const Sequence& s : sequences) made += s.wanted, worst = std::max(worst, worst_of(decoder, s));
  std::printf("%zu sequences, %zu tokens in %zu steps, %.0f a second; attention and its copies: %.0f %% of the time\n",
              sequences.size(), made, steps, static_cast<double>(made) / seconds, 100 * engine.attending / seconds);
  std::printf("%zu of %zu drafts were right\n", engine.scheduler.accepted(), engine.scheduler.drafted());
  std::printf("logits are within %.1e of dense attention over each whole text\n", static_cast<double>(worst));
  return worst < 1e-4f ? 0 : 1;
}

}  // namespace
}  // namespace engine

int main(int count, char** words) try {
  std::map<std::string, std::string> options{{"--sequences", "12"}, {"--tokens", "60"},  {"--rows", "64"},
                                             {"--drafts", "6"},     {"--branches", "2"}, {"--pages", "60"},
                                             {"--page-size", "16"}, {"--device", "cpu"}, {"--seed", "2"}};
  for (int i = 1; i < count; i += 2) {
    const auto option = options.find(words[i]);
    if (option == options.end() || i + 1 == count) {
      std::fprintf(stderr, "'%s' must be one of the options in the comment of main.cpp, with a value\n", words[i]);
      return 2;
    }
    option->second = words[i + 1];
  }
  return engine::run(options);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
