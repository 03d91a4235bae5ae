#include "cuda/decode/config/select.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>

#include "algebra/ceil_div.hpp"
#include "algebra/split.hpp"
#include "base/text.hpp"
#include "cuda/decode/split_policy.hpp"
#include "cuda/sm90/host.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/roles.hpp"

namespace onepass::decode {
namespace {

// The first row that computes the head dims is taken. A tile of keys is 4 to 16 KB of K or V; a warp holds at most
// row_tiles times sixteen rows of O, and where there are more the warps of a team share them.
struct TileConfig {
  int dim_qk, dim_v;  // up to these head dims
  int row_tiles, block_n, warps;
  int halves = 1;
};
constexpr TileConfig kConfigs16[] = {
    {64, 64, 2, 32, 8}, {128, 128, 2, 16, 8}, {256, 256, 1, 16, 8}, {576, 512, 1, 16, 8, 2}};
// Tiles for e4m3 k and v: twice the keys have the same bytes. One row tile has four times the keys, because the fixed
// cost of a tile (a third of all instructions) is then paid half as often (b64 x 4k 2.5 % faster).
constexpr TileConfig kConfigs8[] = {{64, 64, 2, 64, 8}, {128, 128, 2, 64, 8}, {256, 256, 1, 32, 8}};
constexpr TileConfig kConfigs32[] = {
    {64, 64, 1, 16, 8}, {128, 128, 1, 16, 8}, {256, 256, 1, 16, 4}, {576, 512, 1, 16, 8, 4}};
constexpr int kMaxSlots = 8, kMinSlotsOfTwo = 3;  // OfTwo: if CTAs share a multiprocessor
constexpr int kMaxWarps = 8;
constexpr int kParts = 4, kPartedKeys = 64;  // of a tile

bool has_fp8_keys(const Problem& p) { return p.key_dtype() == DType::f8e4m3; }

TileConfig tile_of(const Problem& p) {
  const std::span<const TileConfig> table = p.dtype == DType::f32 ? std::span<const TileConfig>(kConfigs32)
                                            : has_fp8_keys(p)     ? std::span<const TileConfig>(kConfigs8)
                                                                  : kConfigs16;
  TileConfig tile =
      *std::ranges::find_if(table, [&](const TileConfig& t) { return p.dim_qk <= t.dim_qk && p.dim_v <= t.dim_v; });
  // Two row tiles of fp16 products beside a mask_mod leave no registers to look for shown tiles (112 bytes spilled).
  if (has_fp8_keys(p) && !p.mask_mod.empty()) tile.row_tiles = 1;
  // With batch_invariant a team has room for kMaxRows, whatever the number of rows.
  if (p.batch_invariant)
    tile.halves = std::min(tile.halves, 16 * tile.warps * tile.row_tiles / static_cast<int>(kMaxRows));
  return tile;
}

// Warps of a team for `row_tiles` times sixteen rows, of which each warp holds `held`.
int team_of(const TileConfig& tile, int row_tiles, int held) { return row_tiles / held * tile.halves; }

// Keys of a tile. Beside e4m3 keys, registers are short: at most 32 keys, or 16 where a warp holds 32 rows.
int keys_of_tile(const Problem& p, const AttentionFeatures& f, const TileConfig& tile, int held, bool row_blocks) {
  if (!has_fp8_keys(p)) return tile.block_n;
  const int most_held = p.batch_invariant ? tile.row_tiles : held;  // tiles do not depend on the rows
  const bool whole = row_blocks && !p.batch_invariant;              // they have registers for more keys: a third faster
  const bool light = !f.masks() && !f.dropout && !f.tree && f.bias == ScalarType::none;
  if (most_held == 1 && !f.transforms() && !f.masks() && !f.dropout) return tile.block_n;
  return most_held == 1 || p.dim_v <= 64 || (whole && light) ? 32 : 16;
}

// Rows of K and V that TMA loads at once; 0: the copying warps do without, with more instructions.
int box_rows_of(const Problem& p) {
  for (const Role role : {Role::k, Role::v})
    if (!sm90::why_no_tma(p, role).empty()) return 0;
  const auto rows = static_cast<int>(p.paged() ? std::gcd(p.page_size, std::int64_t{kPartedKeys}) : kPartedKeys);
  return rows < 8 ? 0 : rows;
}

// Single tokens whose tiles gain by parts: 0.87 to 0.98 of the time on an H200 within these bounds. Beyond them 1.02
// for 512k keys, 1.23 for one K/V head, 1.06 for 300 keys each; head dim 64 in 0.93 to 1.02.
bool are_few_tokens(const Problem& p) {
  constexpr std::int64_t kGroups = 8, kKeys = 512, kAllKeys = 384 << 10;
  const std::int64_t groups = p.batch * p.heads_kv;
  return p.seq_q == 1 && rows_of(p) <= 16 && groups >= kGroups && p.seq_k >= kKeys && groups * p.seq_k <= kAllKeys;
}

// Rows whose tiles have parts with sums of their own: those with one result, whatever their number. Where warps copy by
// TMA also few single tokens, and 64 rows (32 drafts of 16 at 8k in 0.71 of the time; 32 rows in 0.99 to 1.4, head dim
// 64 in 1.1 to 1.2).
bool has_parts(const Problem& p, const AttentionFeatures& f, bool by_tma) {
  const bool gains = by_tma && std::max(f.dim_qk, f.dim_v) > 64 && (rows_of(p) > 32 || are_few_tokens(p));
  return (p.batch_invariant || gains) && !p.unified_max && !p.entropy && f.input != ScalarType::f32 &&
         f.keys != ScalarType::e4m3 && std::max(f.dim_qk, f.dim_v) <= 128 && !f.dropout && !f.score_mod &&
         !f.mask_mod && !f.bool_mask && f.bias == ScalarType::none;
}

bool fits(const ForwardFeatures& features, const DecodeConfig& c, int shared_bytes) {
  return layout_of(features, c).total <= shared_bytes;
}

// Warps share tiles, each with a part of their keys.
DecodeConfig in_parts(const ForwardFeatures& features, DecodeConfig c, int shared_bytes, int row_tiles) {
  c.parts = c.halves = kParts, c.share = 1;
  c.piece = c.piece * c.block_n / kPartedKeys, c.block_n = kPartedKeys;
  c.row_tiles = std::min(row_tiles, 2), c.warps = kParts * std::max(1, row_tiles / c.row_tiles);
  fill_slots(features, c, shared_bytes);
  return c;
}

// Teams of `team` warps, fewer where two tiles are too many for shared memory.
DecodeConfig in_teams(const ForwardFeatures& features, DecodeConfig c, int shared_bytes, int team) {
  for (; c.warps >= team; c.warps /= 2) {
    c.share = c.warps / team;
    if (fill_slots(features, c, shared_bytes)) return c;
  }
  c.warps = team, c.share = 1;
  return c;
}

// Teams divide the keys. So that a row has one result, their number is that of teams with kMaxRows.
DecodeConfig in_fixed_teams(const ForwardFeatures& features, DecodeConfig c, int shared_bytes, const TileConfig& tile,
                            int team) {
  DecodeConfig most = c;
  most.rows = kMaxRows, most.row_tiles = tile.row_tiles;
  most = in_teams(features, most, shared_bytes, team_of(tile, kMaxRows / 16, tile.row_tiles));
  c.warps = most.share * team;
  return in_teams(features, c, shared_bytes, team);
}

// The config with fewer slots, if two such CTAs then share a multiprocessor.
DecodeConfig beside_another(const ForwardFeatures& features, const DecodeConfig& c, int shared_bytes) {
  for (DecodeConfig two = c; two.slots >= kMinSlotsOfTwo; --two.slots)
    if (blocks_at_once(features, two, shared_bytes) == 2) return two;
  return c;
}

// A block of rows is one step of the line of work, whatever the number of its tiles.
std::string why_too_many(const Problem& p, const DecodeConfig& c) {
  constexpr std::int64_t kMax = cuda::kMaxPosition;
  if (c.row_blocks && rows_of(p) > kMax)
    return text("rows per K/V head must be at most ", kMax, " (got ", rows_of(p), ")");
  const std::int64_t groups = groups_of(p, sharing_of(p, c));
  if (c.row_blocks) {
    if (groups <= kMax) return "";
    return text("blocks of ", c.rows, " rows must be at most ", kMax, " (got ", groups, ")");
  }
  const int piece = std::max(1, c.piece);
  const std::int64_t tiles = round_up(std::max<std::int64_t>(1, tiles_of(p, c.block_n, piece)), piece);
  if (groups <= kMax / tiles) return "";
  return text(groups, " K/V heads have too many tiles of ", c.block_n, " keys for 32-bit indices");
}

}  // namespace

bool fill_slots(const ForwardFeatures& features, DecodeConfig& c, int shared_bytes, int least, int step) {
  for (c.slots = kMaxSlots; c.slots > least && !fits(features, c, shared_bytes);) c.slots -= step;
  return fits(features, c, shared_bytes);
}

// With batch_invariant few rows have the teams of many rows, and at most half of their warps: one such CTA does not
// keep memory busy.
int blocks_at_once(const ForwardFeatures& features, const DecodeConfig& c, int shared_bytes) {
  constexpr int kReserved = 1 << 10;  // of each
  if (c.piece == 0 || c.row_blocks || 2 * c.warps > kMaxWarps) return 1;
  return 2 * (layout_of(features, c).total + kReserved) <= shared_bytes + kReserved ? 2 : 1;
}

Selected<DecodeConfig> select_config(const Problem& p, int shared_bytes, bool hopper, Rows kind) {
  if (std::string sentence = why_not(p, kind); !sentence.empty()) return refuse(sentence);
  const TileConfig tile = tile_of(p);
  const std::int64_t of_block = std::clamp<std::int64_t>(rows_of(p), 1, kMaxRows);
  const int rows = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(of_block)));
  const int row_tiles = std::max(1, rows / 16), held = std::min(row_tiles, tile.row_tiles);
  const int team = team_of(tile, row_tiles, held);
  if (team > tile.warps)
    return refuse("with fp32 head dims beyond 256, rows per K/V head must be at most ",
                  16 * tile.warps / tile.halves * held, " (got ", rows_of(p), ")");

  const ForwardFeatures features = cuda::features_of(p);
  const AttentionFeatures& f = features.attention;
  const bool row_blocks = has_row_blocks(p, kind), one_result = p.batch_invariant;
  const int block_n = keys_of_tile(p, f, tile, held, row_blocks);
  DecodeConfig c{.kSums = p.dtype == DType::f32 && p.dim_v / tile.halves > 128 ? 2 : 1,
                 .rows = rows,
                 .warps = tile.warps,
                 .row_tiles = held,
                 .share = 0,
                 .halves = tile.halves,
                 .block_n = block_n,
                 .slots = 0,
                 .piece = one_result ? static_cast<int>(fixed_splits(p.seq_k, block_n).chunk) / block_n : 0,
                 .copy_bytes = std::min({cuda::row_alignment(p, Role::q), cuda::row_alignment(p, Role::k),
                                         cuda::row_alignment(p, Role::v)}),
                 .even = false,
                 .unified = p.unified_max.has_value(),
                 .row_blocks = row_blocks,
                 .parts = 1,
                 .prompts = false,
                 .copy_warps = 0,
                 .box_rows = 0};
  const bool may_copy = hopper && c.copy_bytes == 16;  // smaller copies would pass through registers
  const int box_rows = may_copy ? box_rows_of(p) : 0;
  if (has_parts(p, f, box_rows != 0)) {
    c.box_rows = box_rows, c.copy_warps = box_rows != 0 || (may_copy && row_blocks) ? 4 : 0;
    c = in_parts(features, c, shared_bytes, row_tiles);
  } else {
    c = one_result ? in_fixed_teams(features, c, shared_bytes, tile, team) : in_teams(features, c, shared_bytes, team);
  }
  if (one_result) c = beside_another(features, c, shared_bytes);
  if (row_blocks && c.parts > 1) c = for_prompts(p, c, shared_bytes).value_or(c);
  if (row_blocks && !one_result && c.row_tiles == 2 && fills_large_blocks(p))
    c = in_large_blocks(features, c, shared_bytes).value_or(c);

  if (!fits(features, c, shared_bytes))
    return refuse("two tiles of K and V per warp at head dims ", p.dim_qk, "/", p.dim_v, " do not fit ", shared_bytes,
                  " bytes of shared memory");
  if (std::string sentence = why_too_many(p, c); !sentence.empty()) return refuse(sentence);
  return c;
}

}  // namespace onepass::decode
