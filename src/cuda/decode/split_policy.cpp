#include "cuda/decode/split_policy.hpp"

#include <algorithm>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::decode {
namespace {

static_assert(kUnifiedReach == kUnifiedRange);  // for cuda/plain, too

constexpr double kBusy = 0.9;  // share of the multiprocessors, if every group is split into the same number of parts

bool lengths_vary(const Problem& p) { return p.varlen || p.seqused; }
std::int64_t pieces_of(const Problem& p, const Sharing& s) {  // of a group, at most
  const int piece = std::max(1, s.piece);
  if (s.own_blocks) return ceil_div(p.seq_k, std::int64_t{piece} * s.block_n);
  return ceil_div(tiles_of(p, s.block_n, piece), piece);
}
// Partial results at most: pieces have one each, else every block has two.
std::int64_t slots_of(const Problem& p, const Sharing& s, int blocks) {
  if (!s.partials) return 0;
  if (s.own_blocks) return blocks * std::max<std::int64_t>(1, pieces_of(p, s));
  return s.co_scheduled * (s.piece == 0 ? 2 * blocks : groups_of(p, s) * std::max<std::int64_t>(1, pieces_of(p, s)));
}

}  // namespace

std::int64_t rows_of(const Problem& p) { return p.seq_q * p.group(); }
std::int64_t groups_of(const Problem& p, const Sharing& s) {
  return p.batch * p.heads_kv * s.row_blocks / s.co_scheduled;
}

Sharing sharing_of(const Problem& p, const DecodeConfig& c, int heads) {
  return {.rows = c.rows,
          .block_n = c.block_n,
          .piece = c.piece,
          .min_tiles = c.min_tiles(),
          .row_blocks = c.row_blocks ? static_cast<int>(ceil_div(rows_of(p), c.rows)) : 1,
          .lead = 0,
          .co_scheduled = heads,
          .own_blocks = c.row_blocks,
          .partials = !c.prompts && (!c.row_blocks || c.piece != 0),
          .by_tiles = c.piece != 0 && !c.row_blocks};
}

std::int64_t tiles_of(const Problem& p, int block_n, int piece) {
  const Range keys = lengths_vary(p) ? Range{0, p.seq_k} : band_mask(p, p.seq_q, p.seq_k).key_range(0, p.seq_q);
  return ceil_div(keys.hi, block_n) - keys.lo / (std::int64_t{block_n} * piece) * piece;
}

int heads_together(const Problem& p, int multiprocessors) {
  constexpr double kUsed = 0.95;  // of the multiprocessors, which whole sets of CTAs take
  if (!lengths_vary(p) || (p.batch_invariant && rows_of(p) > kMaxRows)) return 1;
  if (p.key_dtype() == DType::f8e4m3 && p.softcap != 0 && p.alibi) return 1;  // kCoScheduled says why
  const int most = std::min(multiprocessors, kMaxBlocks);
  for (auto heads = static_cast<int>(std::min<std::int64_t>(p.heads_kv, most)); heads > 1; --heads) {
    const int taken = most / heads * heads;
    if (p.heads_kv % heads == 0 && taken >= kUsed * most) return heads;
  }
  return 1;
}

bool may_be_even(const Problem& p, const Sharing& s) {
  return s.piece == 0 && !s.own_blocks && !lengths_vary(p) && groups_of(p, s) <= kMaxBlocks;
}

Share share_of(const Problem& p, const Sharing& s, int multiprocessors) {
  const std::int64_t most = std::max(1, std::min(multiprocessors, kMaxBlocks) / s.co_scheduled),
                     groups = std::max<std::int64_t>(1, groups_of(p, s)),
                     tiles = std::max<std::int64_t>(1, tiles_of(p, s.block_n));
  if (may_be_even(p, s)) {
    // Whole groups, or an equal number of parts of each: no block then works on two groups by half.
    const std::int64_t splits =
        std::clamp<std::int64_t>(tiles / s.min_tiles, 1, std::max<std::int64_t>(1, most / groups));
    if (groups <= most && (groups * splits >= kBusy * most || splits < most / groups))
      return {static_cast<int>(groups * splits), static_cast<int>(splits)};
  }
  if (s.own_blocks) return {static_cast<int>(std::min(groups, most)), 0};
  // Several whole groups a block, where that leaves few blocks with less than the others: nothing to be merged then.
  const std::int64_t rounds = ceil_div(groups, most), blocks = groups / rounds;
  if (s.lead > 0 && !lengths_vary(p) && groups % rounds == 0 && blocks >= kBusy * static_cast<double>(most))
    return {static_cast<int>(blocks), 0, true};
  return {static_cast<int>(std::min<std::int64_t>(groups * std::max<std::int64_t>(1, pieces_of(p, s)), most)), 0};
}

DecodeParams decided_params(const Problem& p, const Sharing& s, const cuda::TileShape& tile, const Share& share,
                            const cuda::Part& part) {
  DecodeParams d{};
  static_cast<ForwardParams&>(d) = cuda::decided_params(p, tile, 0, part);
  std::copy(p.layout.bool_mask.begin(), p.layout.bool_mask.end(), d.mask_stride);
  d.heads_kv = static_cast<int>(p.heads_kv);
  d.row_groups = std::max(1, s.row_blocks / s.co_scheduled);
  d.co_scheduled = s.co_scheduled;
  d.by_row_groups = Divisor::of(d.row_groups);
  d.by_co_scheduled = Divisor::of(d.co_scheduled);
  d.groups = s.own_blocks ? d.heads_kv : d.heads_kv * s.row_blocks / s.co_scheduled;
  d.by_rows_of_head = Divisor::of(std::max(1, d.heads_per_kv));
  d.by_heads = Divisor::of(std::max(1, d.groups));
  d.blocks = share.blocks;
  d.splits = share.splits;
  d.pieces = static_cast<int>(std::max<std::int64_t>(1, pieces_of(p, s)));
  d.steps = d.pieces;
  if (s.by_tiles)  // every piece counts as a whole one where each has a block
    d.steps = groups_of(p, s) * d.pieces <= share.blocks
                  ? d.pieces * s.piece
                  : static_cast<int>(std::max<std::int64_t>(1, tiles_of(p, s.block_n, s.piece)));
  d.lead = share.splits == 0 ? s.lead : 0;
  d.by_steps = Divisor::of(d.steps + d.lead);
  d.by_splits = Divisor::of(std::max(1, d.splits));
  if (d.splits != 0) d.each = d.steps / d.splits, d.rest = d.steps % d.splits;
  d.min_tiles = s.min_tiles;
  d.phi = p.unified_max.value_or(0.0f) - (p.dtype == DType::f16 || p.kv_dtype ? kUnifiedReach16 : 0.0f);
  std::copy_n(p.layout.recomputed.begin(), 3, d.recomputed.stride);
  cuda::fill_strides(d.entropy_stride, p.layout.entropy);
  return d;
}

std::size_t workspace_bytes_of(const Problem& p, const Sharing& s, int blocks) {
  const auto floats = static_cast<std::size_t>(partial_floats(s.rows, static_cast<int>(p.dim_v), p.entropy));
  return kCounterBytes + sizeof(float) * floats * static_cast<std::size_t>(slots_of(p, s, blocks));
}

void bind(DecodeParams& d, const Tensors& t, void* workspace) {
  cuda::bind(d, t, workspace);
  d.fallback = nullptr;
  d.recomputed.at = static_cast<int*>(t.recomputed.data);
  d.entropy = static_cast<float*>(t.entropy.data);
  d.mask_bytes = static_cast<const unsigned char*>(t.bool_mask.data);
  d.partials = reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + kCounterBytes);
}

unsigned* counters_of(const cuda::Call& call) {
  if (unsigned* const known = cuda::workspace_counters(call.device, call.workspace)) return known;
  call.zero(call.workspace, kCounterBytes);
  return static_cast<unsigned*>(call.workspace);
}

std::string sentence_of(const Share& share, const Sharing& s) {
  const int blocks = share.blocks * s.co_scheduled;
  const std::string co_scheduled =
      s.co_scheduled == 1 ? "" : text(", ", s.co_scheduled, " CTAs share each range of keys");
  if (s.piece != 0) return text(blocks, " CTAs", co_scheduled, ", chunks of ", s.piece * s.block_n, " keys");
  if (share.splits != 0)
    return text(blocks, " CTAs", co_scheduled, ", ", share.splits, share.splits == 1 ? " split" : " splits", " per ",
                s.row_blocks == 1 ? "K/V head" : text(s.rows, " rows of a K/V head"));
  return text("work split into ", blocks, " equal parts", co_scheduled);
}

}  // namespace onepass::decode
