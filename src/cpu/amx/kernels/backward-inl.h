// The five products of a backward pass on tiles, in place of VectorProducts (src/cpu/backward/backward-inl.h): inputs
// are bf16, sums fp32, and P and dX are rounded to bf16 between them; gradients in fp32 would show that, so for them P
// and dX are sums of two bf16 numbers. Everything else, from scores to dX, is the vectors'.
//
//                       A                    B, pairs              C, fp32
//   S^T  = K Q^T        keys x dims of K     dims x rows of Q      [key][lane], as the vectors have it
//   dP^T = V dO^T       keys x dims of V     dims x rows of dO     [key][lane]
//   dQ^T += K^T dX^T    dims x keys of K     keys x rows of dX     [column][lane]
//   dV  += P^T dO       keys x rows of P     rows x dims of dO     [key][column]
//   dK  += dX^T Q       keys x rows of dX    rows x dims of Q      [key][column]
//
// dV and dK wait for all panels of a row block: their accumulators, which come from memory, take 256 rows at a time.
#if defined(ONEPASS_CPU_AMX_BACKWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_AMX_BACKWARD_INL_H
#undef ONEPASS_CPU_AMX_BACKWARD_INL_H
#else
#define ONEPASS_CPU_AMX_BACKWARD_INL_H
#endif

#include "algebra/ceil_div.hpp"
#include "cpu/amx/kernels/square.hpp"
#include "cpu/amx/task.hpp"
#include "cpu/backward/backward-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

template <class Tiles>
struct TileProducts {
  const backward::Call& call;
  const backward::Task& task;
  const backward::Scratch& scratch;
  const amx::Kernels& pack;
  const Problem& p = call.problem();
  const Tensors& a = call.forward.arguments;
  const backward::TileScratch& t = scratch.tiles;
  const std::int64_t depth_qk = round_up(p.dim_qk, 32), depth_v = round_up(p.dim_v, 32);
  const std::int64_t stride = call.cut.key_chunk * kPanel;                    // of the column panels of dK and dV
  const int parts = backward::tile_parts(p);                                  // of P and dX
  const std::int64_t part = std::int64_t{call.cut.panels} * kPanel * kBlock;  // from one to the next
  static_assert(kPanel == 64 && kLanes == 16 && kBlock % 32 == 0);

  using Sq = amx::Square<Tiles>;
  static constexpr amx::SquareLayout kPanelTiles{kLanes, 16 * kPanel, 4 * kPanel};  // of fp32 [..][kPanel]
  static constexpr amx::SquareLayout kPacked{0, 512, 64};                           // of A, two tiles in a row
  static constexpr amx::SquareLayout kWeights{0, 16 * kPanel, 2 * kPanel};          // of A in bf16 [key][kPanel]

  // ---- operands

  void open_task(bool finite) const {
    Tiles::begin();
    const auto keys = [&](const ConstTensor& from, std::int64_t dim, auto kernel, std::uint16_t* to) {
      const KeyValueView view(from, task.seq);
      view.each_run<std::uint16_t>(
          task.head_kv, task.key_lo, task.key_hi - task.key_lo, [&](const auto& run, auto done) {
            kernel({run.row, run.stride, run.tokens, static_cast<int>(dim), to + done * round_up(dim, 32)});
          });
    };
    keys(a.k, p.dim_qk, pack.pack_keys, t.k);
    if (call.wants_ds()) keys(a.v, p.dim_v, pack.pack_keys, t.v);
    if (!a.dq.given()) return;
    keys(a.k, p.dim_qk, pack.pack_values, t.k_columns);
    if (finite) return;
    for (std::int64_t i = 0; i < round_up(task.key_hi - task.key_lo, 32) * depth_qk; ++i)
      if ((t.k_columns[i] & 0x7f80) == 0x7f80) t.k_columns[i] = 0;  // BackwardTask::add_flagged brings it back
  }
  void close_task() const { Tiles::end(); }

  // Numbers that are bf16 already.
  static VU pair(VF even, VF odd) {
    return hn::Or(hn::ShiftRight<16>(hn::BitCast(DU(), even)),
                  hn::And(hn::BitCast(DU(), odd), hn::Set(DU(), 0xffff0000u)));
  }
  void open_panel(int index, const BackwardPanel& panel) const {
    dim_pairs(panel.vecs, panel.q, p.dim_qk, depth_qk, t.q + index * kPanel * depth_qk / 2);
    if (call.wants_ds()) dim_pairs(panel.vecs, panel.dout, p.dim_v, depth_v, t.dout + index * kPanel * depth_v / 2);
    if (a.dk.given()) row_pairs(panel.rows, panel.q_rows, p.dim_qk, depth_qk, t.q_rows + index * kPanel * depth_qk / 2);
    if (a.dv.given() && !sums_lanes(call))
      row_pairs(panel.rows, panel.dout_rows, p.dim_v, depth_v, t.dout_rows + index * kPanel * depth_v / 2);
  }
  // [dim][kPanel] to [vector][dim / 2][lane]
  static void dim_pairs(int vecs, const float* from, std::int64_t dim, std::int64_t depth, std::uint32_t* to) {
    const auto at = [&](std::int64_t d, int v) HWY_ATTR {
      return d < dim && v < vecs ? hn::Load(DF(), from + d * kPanel + v * kLanes) : hn::Zero(DF());
    };
    for (int v = 0; v < kVecs; ++v)
      for (std::int64_t d = 0; d < depth; d += 2, to += kLanes) hn::Store(pair(at(d, v), at(d + 1, v)), DU(), to);
  }
  // [column panel][row][kPanel] to [16 columns][row / 2][column]
  static void row_pairs(int rows, const float* from, std::int64_t dim, std::int64_t depth, std::uint32_t* to) {
    const auto at = [&](int row, std::int64_t d) HWY_ATTR {
      return row < rows && d < dim ? hn::Load(DF(), from + (d / kPanel * kPanel + row) * kPanel + d % kPanel)
                                   : hn::Zero(DF());
    };
    for (std::int64_t d = 0; d < depth; d += kLanes)
      for (int row = 0; row < kPanel; row += 2, to += kLanes) hn::Store(pair(at(row, d), at(row + 1, d)), DU(), to);
  }

  Block open_block(const flash::Task&, std::int64_t first, std::int64_t keys, bool) const {
    std::fill_n(t.groups, 2 * 2 * kGeometry.panels, std::int8_t{0});
    return {first, keys, nullptr, nullptr, 0, 0, false};
  }

  // ---- products. Halves of a panel, 32 rows, take the groups of 32 keys that any of their rows attends to.

  std::int8_t* groups_of(int index, int half) const { return t.groups + (2 * index + half) * 2; }
  std::int64_t group_at(const Block& block) const { return (block.first - task.key_lo) / 32; }

  void key_products(int index, const Block& block, const std::uint16_t* keys, const std::uint32_t* rows,
                    std::int64_t depth, float* to) const {
    for (int half = 0; half < 2; ++half) {
      const std::int8_t* g = groups_of(index, half);
      const std::uint32_t* b = rows + (index * kVecs + 2 * half) * depth / 2 * kLanes;
      for (std::int64_t group = g[0]; group < g[1]; ++group) {
        const std::uint16_t* k = keys + (group_at(block) + group) * 32 * depth;
        Sq::zero();
        for (std::int64_t d = 0; d < depth; d += 32)
          Sq::add(k + d * 32, kPacked, b + d / 2 * kLanes, depth / 2 * kLanes);
        Sq::store(to + group * 32 * kPanel + half * 32, kPanelTiles);
      }
    }
  }
  void scores(int index, const BackwardPanel& panel, const Block& block, const Segments& segments) const {
    for (int v = 0; v < panel.vecs; ++v) {
      if (segments.lo[v] >= segments.hi[v]) continue;
      std::int8_t* g = groups_of(index, v / 2);
      const auto lo = static_cast<std::int8_t>((segments.lo[v] - block.first) / 32),
                 hi = static_cast<std::int8_t>(ceil_div(segments.hi[v] - block.first, 32));
      g[0] = g[0] < g[1] ? std::min(g[0], lo) : lo;
      g[1] = std::max(g[1], hi);
    }
    key_products(index, block, t.k, t.q, depth_qk, scratch.flash.scores);
  }
  void dp(int index, const BackwardPanel&, const Block& block, const Segments&) const {
    key_products(index, block, t.v, t.dout, depth_v, scratch.ds);
  }

  void accumulate(int index, const BackwardPanel& panel, const Block& block, const Segments& segments) const {
    round_weights(index, panel, block, segments);
    for (int half = 0; a.dq.given() && half < 2; ++half) {
      const std::int8_t* g = groups_of(index, half);
      if (g[0] >= g[1]) continue;
      for (std::int64_t d = 0; d < depth_qk; d += 32) {
        float* c = panel.dq + d * kPanel + half * 32;
        Sq::load(c, kPanelTiles);
        for (std::int64_t group = g[0]; group < g[1]; ++group) {
          for (int i = 0; i < parts; ++i) {
            Sq::add(t.k_columns + (group_at(block) + group) * 32 * depth_qk + d * 32, kPacked,
                    t.pairs + i * kPanel * kBlock / 2 + (2 * half * kBlock / 2 + group * 16) * kLanes,
                    kBlock / 2 * kLanes);
          }
        }
        Sq::store(c, kPanelTiles);
      }
    }
  }

  // fp32 to bf16 in the upper half, ties to even, NaN kept.
  static VU rounded(VF x) {
    const VU u = hn::BitCast(DU(), x);
    const VU even = hn::And(hn::ShiftRight<16>(u), hn::Set(DU(), 1));
    const VU r = u + even + hn::Set(DU(), 0x7fff);
    return hn::IfThenElse(hn::RebindMask(DU(), hn::IsNaN(x)), hn::Set(DU(), 0x7fc00000u), r);
  }
  static void store_upper(VU x, std::uint16_t* to) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(x.raw, 16)));
  }
  // Weights and dX of the half's groups in bf16; 0 where a vector does not take part.
  void round_weights(int index, const BackwardPanel& panel, const Block& block, const Segments& segments) const {
    const bool wants_ds = call.wants_ds();
    for (int v = 0; v < kVecs; ++v) {
      const std::int8_t* g = groups_of(index, v / 2);
      const bool any = v < panel.vecs;
      const std::int64_t lo = any ? segments.lo[v] - block.first : 0, hi = any ? segments.hi[v] - block.first : 0;
      const auto at = [&](const float* x, std::int64_t k) HWY_ATTR {
        return k >= lo && k < hi ? hn::Load(DF(), x + k * kPanel + v * kLanes) : hn::Zero(DF());
      };
      for (std::int64_t k = g[0] * 32; k < g[1] * 32; k += 2) {
        const std::int64_t to = (index * kBlock + k) * kPanel + v * kLanes;
        std::uint32_t* pairs = t.pairs + (v * kBlock / 2 + k / 2) * kLanes;
        store_two(at(scratch.flash.scores, k), at(scratch.flash.scores, k + 1), t.weights + to, nullptr);
        if (wants_ds) store_two(at(scratch.ds, k), at(scratch.ds, k + 1), t.ds + to, pairs);
      }
    }
  }
  // Rows of two keys, for each part; pairs: joined too.
  void store_two(VF even, VF odd, std::uint16_t* to, std::uint32_t* pairs) const {
    for (int i = 0; i < parts; ++i, to += part) {
      const VU e = rounded(even), o = rounded(odd);
      store_upper(e, to);
      store_upper(o, to + kPanel);
      const VU high = hn::Set(DU(), 0xffff0000u);
      const VF e_part = hn::BitCast(DF(), hn::And(e, high)), o_part = hn::BitCast(DF(), hn::And(o, high));
      if (pairs) hn::Store(pair(e_part, o_part), DU(), pairs + i * kPanel * kBlock / 2);
      even = even - e_part;
      odd = odd - o_part;
    }
  }

  void close_block(int count, const Block& block) const {
    if (a.dv.given()) accumulate_dkv(count, block, t.weights, t.dout_rows, depth_v, scratch.dv);
    if (a.dk.given()) accumulate_dkv(count, block, t.ds, t.q_rows, depth_qk, scratch.dk);
  }
  // sums[key][column] += weights[key][row] * rows[row][column] over all panels of the row block
  void accumulate_dkv(int count, const Block& block, const std::uint16_t* weights, const std::uint32_t* rows,
                      std::int64_t depth, float* sums) const {
    const auto takes_part = [&](int i, std::int64_t group) {  // the half i % 2 of panel i / 2
      const std::int8_t* g = groups_of(i / 2, i % 2);
      return group >= g[0] && group < g[1];
    };
    for (std::int64_t group = 0; group < ceil_div(block.keys, 32); ++group) {
      bool any = false;
      for (int i = 0; i < 2 * count; ++i) any = any || takes_part(i, group);
      for (std::int64_t d = 0; any && d < depth; d += 32) {
        float* c = sums + d / kPanel * stride + (block.first - task.key_lo + group * 32) * kPanel + d % kPanel;
        Sq::load(c, kPanelTiles);
        for (int i = 0; i < 2 * count; ++i) {
          if (!takes_part(i, group)) continue;
          for (int n = 0; n < parts; ++n) {
            Sq::add(weights + n * part + (i / 2 * kBlock + group * 32) * kPanel + i % 2 * 32, kWeights,
                    rows + i / 2 * kPanel * depth / 2 + (d / kLanes * kPanel / 2 + i % 2 * 16) * kLanes,
                    kPanel / 2 * kLanes);
          }
        }
        Sq::store(c, kPanelTiles);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // per target
