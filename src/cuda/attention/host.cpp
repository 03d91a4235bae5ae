#include "cuda/attention/host.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "algebra/ceil_div.hpp"
#include "algebra/scalar.hpp"
#include "base/text.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/host/config_source.hpp"
#include "onepass/error.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/attention/score.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {
namespace {

// How many heads are worked on together. Many, so that a causal problem's short tiles come last; few enough that their
// K and V stay in L2 (measured on an H200, causal, TFLOP/s by number of heads: d128 4k 16: 713, 32: 687, 64: 629;
// d256 4k 4: 744, 32: 707; d128 1k 16: 504, 32: 510, 64: 498). A divisor of the heads.
int head_group(const Problem& p, bool bounded_right, int l2_bytes) {
  constexpr double kShare = 0.7, kMax = 32;
  const std::int64_t heads = std::max<std::int64_t>(1, p.batch * p.heads_q);
  if (!bounded_right) return 1;
  const double kv = static_cast<double>(p.seq_k * (p.dim_qk + p.dim_v)) * static_cast<double>(size_of(p.dtype));
  auto g = static_cast<std::int64_t>(std::min(kMax, kShare * l2_bytes / std::max(1.0, kv)));
  g = std::clamp<std::int64_t>(g, 1, heads);
  while (heads % g != 0) --g;
  return static_cast<int>(g);
}

std::size_t fallback_bytes(const Problem& p, const TileShape& tile) {
  return sizeof(FallbackEntry) * static_cast<std::size_t>(tile.warps) * static_cast<std::size_t>(tile_bound(p, tile));
}

}  // namespace

int row_alignment(const Problem& p, Role role) {
  const RoleRow& row = row_of(role);
  const Dims& stride = p.layout.*row.layout;
  const auto size = static_cast<std::int64_t>(size_of(shape_of(p, row).dtype));
  std::int64_t bits = 16 | p.alignment[static_cast<std::size_t>(role)];
  for (int i = 0; i < 3; ++i) bits |= stride[i] * size;
  return static_cast<int>(bits & -bits);
}

std::string why_elsewhere(const Problem& p, std::int64_t tiles) {
  if (p.entropy) return "does not support entropy; cuda.decode, cuda.sm90, cuda.sm80 and cuda.plain do";
  return why_too_many(p, tiles);
}

std::string why_no_entropy(const Problem& p) {
  if (!p.entropy) return {};
  if (p.dtype == DType::f8e4m3 || p.kv_dtype) return "does not support entropy with fp8_e4m3; cuda.decode_fp8 does";
  return p.batch_invariant ? "does not support entropy with batch_invariant; cuda.decode does" : "";
}

std::string why_too_many(const Problem& p, std::int64_t tiles) {
  for (const auto& [name, count] : {std::pair{"seq_q", p.seq_q},
                                    {"seq_k", p.seq_k},
                                    {"tokens of q", p.total_q},
                                    {"tokens of k", p.total_k},
                                    {"batch", p.batch},
                                    {"pages", p.pages},
                                    {"heads_q", p.heads_q},
                                    {"tiles of all heads", tiles}}) {
    if (count > kMaxPosition) return text(name, " must be at most ", kMaxPosition, " (got ", count, ")");
  }
  return why_no_alibi(p, kMaxPosition);
}

ScalarType scalar_type_of(DType t) {
  switch (t) {
    case DType::f32: return ScalarType::f32;
    case DType::f16: return ScalarType::f16;
    case DType::bf16: return ScalarType::bf16;
    case DType::f8e4m3: return ScalarType::e4m3;
    case DType::boolean:
    case DType::i32:
    case DType::i64: break;
  }
  throw Error(ErrorCode::bad_dtype, text("CUDA kernels support fp32, fp16, bf16 and fp8_e4m3 (got ", name_of(t), ")"));
}

ForwardFeatures features_of(const Problem& p) {
  const BandMask band = band_mask(p, p.seq_q, p.seq_k);
  AttentionFeatures f{};
  f.dim_qk = static_cast<int>(p.dim_qk);
  f.dim_v = static_cast<int>(p.dim_v);
  f.input = scalar_type_of(p.dtype);
  f.keys = scalar_type_of(p.key_dtype());
  f.bounded_left = band.left >= 0;
  f.bounded_right = band.right >= 0;
  f.packed = p.varlen;
  f.seqused = p.seqused;
  f.paged = p.paged();
  f.softcap = p.softcap > 0;
  f.alibi = p.alibi;
  f.dropout = Dropout::of(p.dropout_p, 0).active();
  f.bool_mask = p.bool_mask.has_value();
  f.bias = p.bias ? scalar_type_of(p.bias->dtype) : ScalarType::none;
  f.score_mod = !p.score_mod.empty();
  f.mask_mod = !p.mask_mod.empty();
  f.scaled_first = !(p.effective_scale() >= double{std::numeric_limits<float>::min()});
  // A row of one key has its score for LSE, within 1e-5: 0.99 of that in 10^6 rows at a cap of 30, 1.7 at 50.
  f.pair_tanh = f.softcap && p.softcap <= 30 && p.dtype != DType::f32;
  f.tree = p.drafts > 0;
  f.dropout_seed = f.dropout && p.dropout_seed;
  f.tf32 = p.precision == Precision::tf32;
  return {.attention = f,
          .output = scalar_type_of(p.out_dtype),
          .sinks = p.sinks,
          .v_mean = p.v_mean.has_value(),
          .row_max = p.want_row_max,
          .entropy = p.entropy && !p.dentropy,  // of a backward they are inputs
          .rounded_sums = p.out_dtype == DType::f32 && size_of(p.dtype) == 2 && !p.partial};
}

const char* precision_of(const Problem& p) { return p.precision == Precision::tf32 ? ", tf32 products" : ""; }

std::string features_source(const ForwardFeatures& f) {
  return text(config_line("cuda/attention/forward.hpp", "onepass", "ForwardFeatures forward_features", f),
              "namespace onepass {\nconstexpr AttentionFeatures features = forward_features.attention;\n}\n");
}

std::int64_t tile_bound(const Problem& p, const TileShape& tile) {
  const std::int64_t a_head = p.varlen ? p.total_q / tile.block_m + p.batch : p.batch * ceil_div(p.seq_q, tile.block_m);
  return a_head * p.heads_q;
}

std::size_t forward_workspace_bytes(const Problem& p, const TileShape& tile) {
  return mask_place(p, tile) + mask_bytes(p, tile);
}

std::size_t mask_place(const Problem& p, const TileShape& tile) { return kTileCounterBytes + fallback_bytes(p, tile); }

ForwardParams decided_params(const Problem& p, const TileShape& tile, int l2_bytes, const Part& part) {
  ForwardParams f{};
  fill_strides(f.q_stride, p.layout.q);
  fill_strides(f.k_stride, p.layout.k);
  fill_strides(f.v_stride, p.layout.v);
  fill_strides(f.out_stride, p.layout.out);
  fill_strides(f.lse_stride, p.layout.lse);
  fill_strides(f.row_max_stride, p.layout.row_max);
  std::copy(p.layout.bias.begin(), p.layout.bias.end(), f.bias_stride);
  std::copy_n(p.layout.alibi_slopes.begin(), 2, f.slope_stride);
  f.sink_stride = p.layout.sinks[0];
  f.batch = static_cast<int>(p.batch);
  f.heads = static_cast<int>(p.heads_q);
  f.heads_per_kv = static_cast<int>(p.group());
  f.seq_q = static_cast<int>(p.seq_q);
  f.seq_k = static_cast<int>(p.seq_k);
  const BandMask band = band_mask(p, p.seq_q, p.seq_k);
  f.align_bottom = p.band.align == Align::bottom_right;
  if (f.align_bottom) {  // packed sequences have a shift each
    const auto side = [&](Index n) { return n < 0 ? -1 : static_cast<int>(std::min<Index>(n, p.seq_q + p.seq_k)); };
    f.left = side(band.left);
    f.right = side(band.right);
  } else {
    const BandMask small = band.within(kMaxPosition);
    f.offset = static_cast<int>(small.shift);
    f.left = static_cast<int>(small.left);
    f.right = static_cast<int>(small.right);
  }
  f.seqused_stride = p.layout.seqused_k[0];
  std::copy_n(p.layout.page_table.begin(), 2, f.table_stride);
  f.page_size = static_cast<int>(p.page_size);
  const auto page_size = static_cast<std::uint64_t>(p.page_size);
  f.page_shift = std::has_single_bit(page_size) ? std::countr_zero(page_size) : -1;
  f.pages = static_cast<int>(p.pages);
  fill_strides(f.q_descale_stride, p.layout.q_descale);
  fill_strides(f.k_descale_stride, p.layout.k_descale);
  fill_strides(f.v_descale_stride, p.layout.v_descale);
  fill_strides(f.v_mean_stride, p.layout.v_mean);
  f.scale = static_cast<float>(p.effective_scale());
  f.scale_log2 = static_cast<float>(p.effective_scale() * kLog2e);
  f.cap_in = p.softcap > 0 ? static_cast<float>(p.effective_scale() / p.softcap) : 0.0f;
  f.cap_out = static_cast<float>(p.softcap);
  f.dropout = dropout_of(p, p.seed);
  f.batch_inner = p.bias && p.bias->spans.heads && !p.bias->spans.batch;
  f.m_tiles = static_cast<int>(ceil_div(p.seq_q, tile.block_m));
  f.head_group = head_group(p, band.right >= 0, l2_bytes);
  f.tiles = static_cast<int>(tile_bound(p, tile));
  f.least_rows = part.least_rows, f.most_rows = part.most_rows, f.concurrent = part.concurrent;
  std::copy_n(p.layout.tree.begin(), 2, f.tree_stride);
  f.drafts = static_cast<int>(p.drafts);
  return f;
}

void bind(ForwardParams& f, const Tensors& t, void* workspace) {
  f.q = t.q.data;
  f.k = t.k.data;
  f.v = t.v.data;
  f.out = t.out.data;
  f.lse = static_cast<float*>(t.lse.data);
  f.row_max = static_cast<float*>(t.row_max.data);
  f.fallback = reinterpret_cast<FallbackEntry*>(static_cast<std::byte*>(workspace) + kTileCounterBytes);
  f.cu_q = static_cast<const int*>(t.cu_seqlens_q.data);
  f.cu_k = static_cast<const int*>(t.cu_seqlens_k.data);
  f.seqused = static_cast<const int*>(t.seqused_k.data);
  f.page_table = static_cast<const int*>(t.page_table.data);
  f.tree = static_cast<const int*>(t.tree.data);
  f.dropout.seed = static_cast<const unsigned long long*>(t.dropout_seed.data);
  f.bias = t.bias.data;
  f.slopes = static_cast<const float*>(t.alibi_slopes.data);
  f.sinks = static_cast<const float*>(t.sinks.data);
  f.q_descale = static_cast<const float*>(t.q_descale.data);
  f.k_descale = static_cast<const float*>(t.k_descale.data);
  f.v_descale = static_cast<const float*>(t.v_descale.data);
  f.v_mean = static_cast<const float*>(t.v_mean.data);
  fill_mod_buffers(t, f.mod_buffers);
}

EntropyParams decided_forward(const Problem& p, const TileShape& tile, int l2_bytes, const Part& part) {
  EntropyParams f{decided_params(p, tile, l2_bytes, part), nullptr, {}};
  fill_strides(f.entropy_stride, p.layout.entropy);
  return f;
}

void bind(EntropyParams& f, const Tensors& t, void* workspace) {
  bind(static_cast<ForwardParams&>(f), t, workspace);
  f.entropy = static_cast<float*>(t.entropy.data);
}

unsigned* tile_counters(const Call& call) {
  if (unsigned* const known = stream_counters(call.device, call.stream)) return known;
  if (unsigned* const known = workspace_counters(call.device, call.workspace)) return known;
  call.zero(call.workspace, kTileCounterBytes);
  return static_cast<unsigned*>(call.workspace);
}

}  // namespace onepass::cuda
