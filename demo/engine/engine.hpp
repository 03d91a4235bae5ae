// A step of the engine: its tensors, and the two calls of a layer.
#pragma once
#include <chrono>
#include <cmath>
#include <deque>
#include <iterator>

#include "decoder.hpp"
#include "memory.hpp"
#include "onepass/onepass.hpp"
#include "scheduler.hpp"

namespace engine {

using onepass::View;

// The q, k or v of a fused projection: a view [tokens, heads, dim].
inline View<float> part(float* qkv, std::int64_t tokens, std::int64_t first, std::int64_t heads,
                        onepass::Device device) {
  return {qkv + first * kDim, {tokens, heads, kDim}, {kQkv, kDim, 1}, device};
}

class Engine {
 public:
  Engine(Decoder& decoder, const Limits& limits, const Cuda* cuda)
      : decoder_(decoder), limits_(limits), cuda_(cuda), scheduler(limits), cos_(cuda), sin_(cuda) {
    if (cuda != nullptr) device_ = {onepass::DeviceKind::cuda, 0};
    const std::size_t elements = limits.pages * limits.page_size * kHeadsKv * kDim;
    Numbers nothing(elements, NAN);  // what no token was written to must not be read
    for (std::int64_t i = 0; i < 2 * kLayers; ++i) {
      pool_.push_back(nothing);
      mirrors_.emplace_back(cuda);
      caches_.push_back(mirrors_.back().up(pool_.back()));
    }
    at_cos_ = cos_.up(decoder.cos), at_sin_ = sin_.up(decoder.sin);
  }

  // One step; returns its number of rows.
  std::size_t step() {
    const std::vector<Rows> rows = scheduler.next();
    Ints tokens, cu_seqlens{0}, before, after, table;
    std::size_t width = 0;
    for (const Rows& r : rows) width = std::max(width, r.of->pages.size());
    for (const Rows& r : rows) {
      const auto first = r.of->tokens.begin() + static_cast<std::ptrdiff_t>(r.of->cached);
      tokens.insert(tokens.end(), first, first + static_cast<std::ptrdiff_t>(r.own));
      tokens.insert(tokens.end(), r.drafts.begin(), r.drafts.end());
      cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
      before.push_back(static_cast<std::int32_t>(r.of->cached));
      after.push_back(static_cast<std::int32_t>(r.of->cached + r.count()));
      table.insert(table.end(), r.of->pages.begin(), r.of->pages.end());
      table.resize(before.size() * width, -1);
    }
    const std::int64_t batch = std::ssize(rows), total = std::ssize(tokens);
    const View<const std::int32_t> starts(starts_.up(cu_seqlens), {batch + 1}, device_),
        lengths_before(before_.up(before), {batch}, device_), lengths_after(after_.up(after), {batch}, device_),
        pages(table_.up(table), {batch, static_cast<std::int64_t>(width)}, device_);
    const Numbers logits = decoder_.logits(tokens, [&](std::size_t layer, Numbers& qkv, Numbers& out) {
      const auto start = std::chrono::steady_clock::now();
      float* const x = qkv_.up(qkv);
      const onepass::Tensor q = part(x, total, 0, kHeads, device_), k = cache(2 * layer), v = cache(2 * layer + 1);
      const std::int64_t half = kDim / 2;
      onepass::append_kv({.k_new = part(x, total, kHeads, kHeadsKv, device_),
                          .v_new = part(x, total, kHeads + kHeadsKv, kHeadsKv, device_),
                          .k = k,
                          .v = v,
                          .cache_seqlens = lengths_before,
                          .page_table = pages,
                          .cu_seqlens_q = starts,
                          .cos = View<const float>(at_cos_, {decoder_.positions, half}, device_),
                          .sin = View<const float>(at_sin_, {decoder_.positions, half}, device_),
                          .q = q,
                          .q_out = q});
      onepass::AttentionTensors t;
      t.q = q, t.k = k, t.v = v;
      t.out = View<float>(out_.place_of(out), {total, kHeads, kDim}, device_);
      t.cu_seqlens_q = starts, t.seqused_k = lengths_after, t.page_table = pages;
      // Bounds of any step: on a device they choose the kernels, since only the device knows the lengths.
      onepass::attention(t, {.band = {.causal = true}, .max_seqlen_q = static_cast<std::int64_t>(limits_.rows)});
      out_.down(out);
      attending += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    });
    scheduler.take(rows, logits);
    return tokens.size();
  }

 private:
  Decoder& decoder_;
  Limits limits_;
  const Cuda* cuda_;

 public:
  Scheduler scheduler;
  double attending = 0;  // seconds in append_kv and attention, with copies to the device and back

 private:
  onepass::Tensor cache(std::size_t i) {
    const auto n = [](std::size_t x) { return static_cast<std::int64_t>(x); };
    return View<float>(caches_[i], {n(limits_.pages), n(limits_.page_size), kHeadsKv, kDim}, device_);
  }
  onepass::Device device_{};
  std::deque<Numbers> pool_;  // K and V of each layer
  std::deque<Mirror<float>> mirrors_;
  std::vector<float*> caches_;
  Mirror<float> cos_, sin_, qkv_{cuda_}, out_{cuda_};
  const float *at_cos_, *at_sin_;
  Mirror<std::int32_t> starts_{cuda_}, before_{cuda_}, after_{cuda_}, table_{cuda_};
};

}  // namespace engine
