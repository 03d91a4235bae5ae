#include "cuda/attention/host.hpp"

#include <algorithm>
#include <limits>

#include "core/arguments.hpp"
#include "core/scalar.hpp"
#include "cuda/attention/mask_host.hpp"
#include "cuda/attention/mods.hpp"
#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

constexpr std::size_t kCounterBytes = 64;

Type type_of(DType t) { return t == DType::f32 ? Type::f32 : t == DType::f16 ? Type::f16 : Type::bf16; }

void fill_strides(long long (&to)[3], const Dims& from) { std::copy(from.begin(), from.begin() + 3, to); }

// How many heads are worked on together. Many, so that a causal problem's short tiles come last; few enough that their
// K and V stay in L2 (measured on an H200, causal, TFLOP/s by number of heads: d128 4k 16: 713, 32: 687, 64: 629;
// d256 4k 4: 744, 32: 707; d128 1k 16: 504, 32: 510, 64: 498). A divisor of the heads.
int heads_together(const Problem& p, bool bounded_right, int l2_bytes) {
  constexpr double kShare = 0.7, kMax = 32;
  const std::int64_t heads = std::max<std::int64_t>(1, p.batch * p.heads_q);
  if (!bounded_right) return 1;
  const double kv = static_cast<double>(p.seq_k * (p.dim_qk + p.dim_v)) * static_cast<double>(size_of(p.dtype));
  auto g = static_cast<std::int64_t>(std::min(kMax, kShare * l2_bytes / std::max(1.0, kv)));
  g = std::clamp<std::int64_t>(g, 1, heads);
  while (heads % g != 0) --g;
  return static_cast<int>(g);
}

std::size_t redo_bytes(const Problem& p, const TileCut& cut) {
  return sizeof(RedoEntry) * static_cast<std::size_t>(cut.warps) * static_cast<std::size_t>(tile_bound(p, cut));
}

}  // namespace

const DeviceFacts* device_of(const Problem& p, std::string& why) {
  if (p.device.kind != DeviceKind::cuda) {
    why = "it computes on CUDA devices only";
    return nullptr;
  }
  if (!driver(&why)) return nullptr;
  try {
    return &device_facts(p.device.index);
  } catch (const Error& e) {
    why = e.what();
    return nullptr;
  }
}

ForwardFeatures features_of(const Problem& p) {
  const BandMask band = band_mask(p, p.seq_q, p.seq_k);
  ForwardFeatures f{};
  f.dim_qk = static_cast<int>(p.dim_qk);
  f.dim_v = static_cast<int>(p.dim_v);
  f.input = type_of(p.dtype);
  f.output = type_of(p.out_dtype);
  f.bounded_left = band.left >= 0;
  f.bounded_right = band.right >= 0;
  f.packed = p.varlen;
  f.softcap = p.softcap > 0;
  f.alibi = p.alibi;
  f.sinks = p.sinks;
  f.dropout = Dropout::of(p.dropout_p, 0).active();
  f.bool_mask = p.bool_mask.has_value();
  f.bias = p.bias ? type_of(p.bias->dtype) : Type::none;
  f.score_mod = !p.score_mod.empty();
  f.mask_mod = !p.mask_mod.empty();
  f.scaled_first = !(p.effective_scale() >= double{std::numeric_limits<float>::min()});
  // A row of one key has its score for LSE, within 1e-5: 0.99 of that in 10^6 rows at a cap of 30, 1.7 at 50.
  f.pair_tanh = f.softcap && p.softcap <= 30 && p.dtype != DType::f32;
  return f;
}

std::string features_text(const ForwardFeatures& f) {
  const char* const types[] = {"Type::none", "Type::f32", "Type::f16", "Type::bf16"};
  const auto type = [&](Type t) { return types[static_cast<int>(t)]; };
  return text("#include \"cuda/attention/forward.hpp\"\nnamespace onepass { constexpr ForwardFeatures features = {",
              f.dim_qk, ", ", f.dim_v, ", ", type(f.input), ", ", type(f.output), ", ", word(f.bounded_left), ", ",
              word(f.bounded_right), ", ", word(f.packed), ", ", word(f.softcap), ", ", word(f.alibi), ", ",
              word(f.sinks), ", ", word(f.dropout), ", ", word(f.bool_mask), ", ", type(f.bias), ", ",
              word(f.score_mod), ", ", word(f.mask_mod), ", ", word(f.scaled_first), ", ", word(f.pair_tanh), "}; }\n");
}

std::int64_t tile_bound(const Problem& p, const TileCut& cut) {
  const std::int64_t a_head =
      p.varlen ? p.total_q / cut.block_m + p.batch : p.batch * ((p.seq_q + cut.block_m - 1) / cut.block_m);
  return a_head * p.heads_q;
}

std::size_t forward_workspace_bytes(const Problem& p, const TileCut& cut) {
  return kCounterBytes + redo_bytes(p, cut) + mask_bytes(p, cut);
}

void* mask_place(const Problem& p, const TileCut& cut, void* workspace) {
  return static_cast<std::byte*>(workspace) + kCounterBytes + redo_bytes(p, cut);
}

ForwardParams params_of(const Problem& p, const Arguments& a, const TileCut& cut, void* workspace,
                        const DeviceFacts& device, Stream stream) {
  ForwardParams f = params_without_device(p, a, cut, workspace, device.l2_bytes);
  f.counters = stream_counters(device, stream);
  if (!f.counters) {
    f.counters = static_cast<unsigned*>(workspace);
    must(driver()->memset8(reinterpret_cast<DevicePtr>(workspace), 0, kCounterBytes, stream), "cuMemsetD8Async");
  }
  if (p.bool_mask) f.mask = pack_mask(p, a, cut, mask_place(p, cut, workspace), device, stream);
  return f;
}

ForwardParams params_without_device(const Problem& p, const Arguments& a, const TileCut& cut, void* workspace,
                                    int l2_bytes) {
  ForwardParams f{};
  f.q = a.q.data;
  f.k = a.k.data;
  f.v = a.v.data;
  fill_strides(f.q_stride, p.layout.q);
  fill_strides(f.k_stride, p.layout.k);
  fill_strides(f.v_stride, p.layout.v);
  fill_strides(f.out_stride, p.layout.out);
  f.out = a.out.data;
  if (p.want_lse) {
    f.lse = static_cast<float*>(a.lse.data);
    const Dims& s = a.lse.stride;
    const Dims order = p.varlen ? Dims{0, s[0], s[1], 0} : s;
    fill_strides(f.lse_stride, order);
  }
  f.redo = reinterpret_cast<RedoEntry*>(static_cast<std::byte*>(workspace) + kCounterBytes);
  f.cu_q = static_cast<const int*>(a.cu_seqlens_q.data);
  f.cu_k = static_cast<const int*>(a.cu_seqlens_k.data);
  if (p.bias) {
    const Dims s = broadcast_strides(a.bias);
    std::copy(s.begin(), s.end(), f.bias_stride);
    f.bias = a.bias.data;
  }
  if (p.alibi) {
    const Tensor& t = a.alibi_slopes;
    f.slopes = static_cast<const float*>(t.data);
    f.slope_stride[0] = t.rank == 2 ? t.stride[0] : 0;
    f.slope_stride[1] = t.rank == 2 ? t.stride[1] : t.stride[0];
  }
  if (p.sinks) {
    f.sinks = static_cast<const float*>(a.sinks.data);
    f.sink_stride = a.sinks.stride[0];
  }
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
  f.scale = static_cast<float>(p.effective_scale());
  f.scale_log2 = static_cast<float>(p.effective_scale() * kLog2e);
  f.cap_in = p.softcap > 0 ? static_cast<float>(p.effective_scale() / p.softcap) : 0.0f;
  f.cap_out = static_cast<float>(p.softcap);
  f.dropout = Dropout::of(p.dropout_p, p.seed);
  f.batch_inner = p.bias && p.bias->spans.heads && !p.bias->spans.batch;
  f.m_tiles = static_cast<int>((p.seq_q + cut.block_m - 1) / cut.block_m);
  f.heads_together = heads_together(p, band.right >= 0, l2_bytes);
  f.tiles = static_cast<int>(tile_bound(p, cut));
  fill_mod_buffers(a, f.mod_buffers);
  return f;
}

}  // namespace onepass::cuda
