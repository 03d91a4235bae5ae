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
    Ints tokens, positions, cu_seqlens{0}, lengths, table, trees;
    Longs slots;
    std::size_t width = 0;
    for (const Rows& r : rows) width = std::max(width, r.of->pages.size());
    for (const Rows& r : rows) {
      const auto first = r.of->tokens.begin() + static_cast<std::ptrdiff_t>(r.of->cached);
      tokens.insert(tokens.end(), first, first + static_cast<std::ptrdiff_t>(r.own));
      tokens.insert(tokens.end(), r.drafts.tokens.begin(), r.drafts.tokens.end());
      for (std::size_t i = 0; i < r.count(); ++i) slots.push_back(r.of->slot(r.of->cached + i, limits_.page_size));
      const auto end = static_cast<std::int32_t>(r.of->cached + r.own);
      for (std::int32_t i = end - static_cast<std::int32_t>(r.own); i < end; ++i) positions.push_back(i);
      for (const std::int32_t depth : r.drafts.depths) positions.push_back(end + depth);
      cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
      lengths.push_back(static_cast<std::int32_t>(r.of->cached + r.count()));
      table.insert(table.end(), r.of->pages.begin(), r.of->pages.end());
      table.resize(lengths.size() * width, -1);
      // The last keys of a sequence: a chain of its text, then its drafts.
      const auto chain = static_cast<std::int32_t>(limits_.drafts - r.drafts.size());
      for (std::int32_t i = 0; i < chain; ++i) trees.push_back(i - 1);
      for (const std::int32_t parent : r.drafts.parents) trees.push_back(chain + parent);
    }
    const std::int64_t batch = std::ssize(rows), total = std::ssize(tokens), most = std::ssize(trees) / batch;
    const View<const std::int32_t> starts(starts_.up(cu_seqlens), {batch + 1}, device_),
        used(lengths_.up(lengths), {batch}, device_), places(positions_.up(positions), {total}, device_),
        pages(table_.up(table), {batch, static_cast<std::int64_t>(width)}, device_),
        tree(trees_.up(trees), {batch, most}, device_);
    const View<const std::int64_t> slot_mapping(slots_.up(slots), {total}, device_);
    const Numbers logits = decoder_.logits(tokens, [&](std::size_t layer, Numbers& qkv, Numbers& out) {
      const auto start = std::chrono::steady_clock::now();
      float* const x = qkv_.up(qkv);
      const onepass::Tensor q = part(x, total, 0, kHeads, device_), k = cache(2 * layer), v = cache(2 * layer + 1);
      const std::int64_t half = kDim / 2;
      onepass::append_kv({.k_new = part(x, total, kHeads, kHeadsKv, device_),
                          .v_new = part(x, total, kHeads + kHeadsKv, kHeadsKv, device_),
                          .k = k,
                          .v = v,
                          .slot_mapping = slot_mapping,
                          .positions = places,
                          .cos = View<const float>(at_cos_, {decoder_.positions, half}, device_),
                          .sin = View<const float>(at_sin_, {decoder_.positions, half}, device_),
                          .q = q,
                          .q_out = q});
      onepass::AttentionTensors t;
      t.q = q, t.k = k, t.v = v;
      t.out = View<float>(out_.place_of(out), {total, kHeads, kDim}, device_);
      t.cu_seqlens_q = starts, t.seqused_k = used, t.page_table = pages;
      if (most > 0) t.tree = tree;
      // Bounds of any step: on a device they choose the kernels, since only the device knows the lengths.
      onepass::attention(t, {.band = {.causal = true}, .max_seqlen_q = static_cast<std::int64_t>(limits_.rows)});
      out_.down(out);
      attending += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    });
    for (const Move& move : scheduler.take(rows, logits))
      for (std::size_t i = 0; i < caches_.size(); ++i)
        mirrors_[i].copy(caches_[i], kHeadsKv * kDim, move.from, move.to);
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
  Mirror<std::int32_t> starts_{cuda_}, lengths_{cuda_}, positions_{cuda_}, table_{cuda_}, trees_{cuda_};
  Mirror<std::int64_t> slots_{cuda_};
};

}  // namespace engine
