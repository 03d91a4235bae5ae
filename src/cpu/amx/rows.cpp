#include "cpu/amx/rows.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "algebra/ceil_div.hpp"
#include "cpu/amx/fallback.hpp"
#include "cpu/common/score_unit.hpp"
#include "problem/attention/key_value_view.hpp"

namespace onepass::cpu::amx {
namespace {

template <class T, class Data>
T* at(const BasicTensor<Data>& t, std::int64_t offset) {
  return static_cast<T*>(t.data) + offset;
}
template <class Void>
Void* at(Void* data, DType dtype, std::int64_t offset) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<Byte*>(data) + offset * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

RowBlock row_block(const Problem& p, const Tensors& a, const ScoreParams& params, const Sequence& seq,
                   std::int64_t batch, std::int64_t kv_head, std::int64_t first_row) {
  const BandMask band = band_mask(p, seq.seq_q, seq.seq_k);
  const SideTensor &bias = params.bias, &mask = params.mask;
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  RowBlock block{};
  const Descale factors(a.q_descale, seq.batch);
  block.rows = static_cast<int>(std::min<std::int64_t>(kRows, seq.seq_q * p.group() - first_row));
  block.first = kFar;
  block.full_to = kFar;
  for (int r = 0; r < kRows; ++r) {
    block.hi[r] = kFar;
    block.factor[r] = 1.0f;
    if (r >= block.rows) continue;
    const std::int64_t token = (first_row + r) / p.group(), head = kv_head * p.group() + (first_row + r) % p.group();
    const Range keys = band.keys_of(token);
    block.lo[r] = keys.lo;
    block.hi[r] = keys.hi;
    if (keys.lo < keys.hi) {
      block.first = std::min<std::int64_t>(block.first, keys.lo);
      block.last = std::max<std::int64_t>(block.last, keys.hi);
    }
    block.full_from = std::max<std::int64_t>(block.full_from, keys.lo);
    block.full_to = std::min<std::int64_t>(block.full_to, keys.hi);
    block.q[r] = at<const std::uint16_t>(a.q, row_offset(a.q, seq.batch, head, seq.q_begin + token));
    block.out[r] = at(a.out.data, a.out.dtype, row_offset(a.out, seq.batch, head, seq.q_begin + token));
    if (p.want_lse) block.lse[r] = at<float>(a.lse, lse_offset(a.lse, seq.batch, head, seq.q_begin + token));
    if (p.want_row_max)
      block.row_max[r] = at<float>(a.row_max, lse_offset(a.row_max, seq.batch, head, seq.q_begin + token));
    if (p.entropy) block.entropy[r] = at<float>(a.entropy, lse_offset(a.entropy, seq.batch, head, seq.q_begin + token));
    if (bias.given()) block.bias[r] = at(bias.data, bias.dtype, bias.row(batch, head, token));
    if (mask.given()) block.mask[r] = static_cast<const std::uint8_t*>(mask.data) + mask.row(batch, head, token);
    if (params.slopes) block.slope[r] = params.slope(batch, head);
    block.position[r] = token + band.shift;
    if (p.sinks) block.sink[r] = *at<const float>(a.sinks, head * a.sinks.stride[0]);
    block.factor[r] = factors.at(head, token);
    block.token[r] = static_cast<std::uint32_t>(token);
    block.head[r] = static_cast<std::uint32_t>(head);
  }
  if (block.last == 0) block.first = 0;  // no key is visible
  return block;
}

void look_at_mask(const Problem& p, const MaskBounds& mask, const Sequence& seq, std::int64_t kv_head,
                  std::int64_t first_row, RowBlock& block, Tile* shown) {
  if (block.first >= block.last) return;
  const std::int64_t group = p.group(), head = kv_head * group, from = block.first / kGroup * kGroup,
                     row = first_row / group, last_row = (first_row + block.rows - 1) / group;
  mask.classify_tiles({seq.batch, seq.batch, head, head + group - 1, row, last_row, from, block.last - 1},
                      last_row - row + 1, kGroup, shown, 0);
  block.shown = shown;
  block.shown_from = from;
  const std::int64_t groups = ceil_div(block.last - from, kGroup);
  std::int64_t lo = 0, hi = groups;
  while (lo < groups && shown[lo] == Tile::skip) ++lo;
  while (hi > lo && shown[hi - 1] == Tile::skip) --hi;
  block.first = lo < hi ? std::max(block.first, from + lo * kGroup) : 0;
  block.last = lo < hi ? std::min(block.last, from + hi * kGroup) : 0;
}

AttendTask attend_task(const Problem& p, const Tensors& a, const ScoreParams& params, const Sequence& seq,
                       std::int64_t kv_head, const Scratch& scratch) {
  AttendTask task{};
  task.params = &params;
  task.mod_buffers = a.mod_buffers;
  task.unit = score_unit_of(p, true);
  task.negate_q = params.scale < 0;
  task.sinks = p.sinks;
  task.row_max = p.want_row_max;
  task.entropy = p.entropy;
  task.dropout_p = p.dropout_p;
  task.seed = seed_of(p, a);
  std::copy_n(p.dropout_start.begin(), 4, task.dropout_start);
  task.scratch = scratch;
  task.dim_qk = static_cast<int>(p.dim_qk);
  task.dim_v = static_cast<int>(p.dim_v);
  task.joins = p.batch_invariant;
  task.seq_k = seq.seq_k;
  task.kv_head = kv_head;
  task.scaled = a.q_descale.given() || a.k_descale.given();
  task.key_factors = Descale(a.k_descale, seq.batch);
  task.out_type = p.out_dtype;
  task.batch = static_cast<std::uint32_t>(seq.batch);
  return task;
}

namespace {

constexpr std::int64_t kAhead = 2 * kGroup;  // keys between what is packed and what is fetched

// Kernels read rows of one stride. Where pages end inside a group, its rows are brought together first. Rows of other
// heads lie between those of one in [seq, heads, dim], which the CPU's own prefetching does not follow.
template <class Kernel>
void pack_tensor(const KeyValueView& view, std::int64_t head, std::int64_t from, std::int64_t keys, std::int64_t dim,
                 std::int64_t depth, bool whole_groups, std::uint16_t* to, std::uint32_t* flags, std::int64_t words,
                 Kernel kernel) {
  alignas(64) std::uint16_t rows[kGroup * kLargestDim];
  for (std::int64_t done = 0; done < keys; done += kGroup) {
    const std::int64_t count = std::min<std::int64_t>(kGroup, keys - done), ahead = done + kAhead;
    view.each_run<std::uint16_t>(head, from + ahead, std::min<std::int64_t>(kGroup, keys - ahead),
                                 [&](const auto& run, std::int64_t) {
                                   for (std::int64_t i = 0; i < run.tokens; ++i)
                                     for (std::int64_t d = 0; d < dim; d += 32)
                                       __builtin_prefetch(run.row + i * run.stride + d);
                                 });
    PackTask task{rows, dim, count, static_cast<int>(dim), to + done * depth, flags + done / kGroup * words};
    view.each_run<std::uint16_t>(head, from + done, count, [&](const auto& run, std::int64_t before) {
      if (whole_groups)
        task.from = run.row, task.stride = run.stride;
      else
        for (std::int64_t i = 0; i < run.tokens; ++i)
          std::copy_n(run.row + i * run.stride, dim, rows + (before + i) * dim);
    });
    kernel(task);
  }
}

}  // namespace

void pack_keys(const Kernels& kernels, const Problem& p, const Tensors& a, const Sequence& seq, std::int64_t head,
               std::int64_t from, std::int64_t keys, const PackedKeys& to) {
  const std::int64_t depth_qk = round_up(p.dim_qk, 32), depth_v = round_up(p.dim_v, 32), words = flag_words(depth_v);
  const bool whole_groups = !p.paged() || p.page_size % kGroup == 0;
  pack_tensor(KeyValueView(a.k, seq), head, from, keys, p.dim_qk, depth_qk, whole_groups, to.k, to.flags, words,
              kernels.pack_keys);
  pack_tensor(KeyValueView(a.v, seq), head, from, keys, p.dim_v, depth_v, whole_groups, to.v, to.flags, words,
              kernels.pack_values);
}

void finish_rows(const Problem& p, const Tensors& a, const ScoreParams& params, const Sequence& seq,
                 const AttendTask& task) {
  for (int b = 0; b < task.blocks; ++b) {
    for (int r = 0; r < kRows; ++r) {
      if (!(task.not_finite[b] >> r & 1)) continue;
      const RowBlock& block = task.scratch.blocks[b];
      fallback_row(p, a, params, seq, block.head[r], block.token[r], task.scratch.mods);
    }
  }
}

}  // namespace onepass::cpu::amx
