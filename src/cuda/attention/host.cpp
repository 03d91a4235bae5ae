#include "cuda/attention/host.hpp"
#include "core/text.hpp"

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

ForwardParams decided_params(const Problem& p, const TileCut& cut, int l2_bytes) {
  ForwardParams f{};
  fill_strides(f.q_stride, p.layout.q);
  fill_strides(f.k_stride, p.layout.k);
  fill_strides(f.v_stride, p.layout.v);
  fill_strides(f.out_stride, p.layout.out);
  fill_strides(f.lse_stride, p.layout.lse);
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
  f.scale = static_cast<float>(p.effective_scale());
  f.scale_log2 = static_cast<float>(p.effective_scale() * kLog2e);
  f.cap_in = p.softcap > 0 ? static_cast<float>(p.effective_scale() / p.softcap) : 0.0f;
  f.cap_out = static_cast<float>(p.softcap);
  f.dropout = Dropout::of(p.dropout_p, p.seed);
  f.batch_inner = p.bias && p.bias->spans.heads && !p.bias->spans.batch;
  f.m_tiles = static_cast<int>((p.seq_q + cut.block_m - 1) / cut.block_m);
  f.heads_together = heads_together(p, band.right >= 0, l2_bytes);
  f.tiles = static_cast<int>(tile_bound(p, cut));
  return f;
}

void bind(ForwardParams& f, const Tensors& t, void* workspace) {
  f.q = t.q.data;
  f.k = t.k.data;
  f.v = t.v.data;
  f.out = t.out.data;
  f.lse = static_cast<float*>(t.lse.data);
  f.redo = reinterpret_cast<RedoEntry*>(static_cast<std::byte*>(workspace) + kCounterBytes);
  f.cu_q = static_cast<const int*>(t.cu_seqlens_q.data);
  f.cu_k = static_cast<const int*>(t.cu_seqlens_k.data);
  f.bias = t.bias.data;
  f.slopes = static_cast<const float*>(t.alibi_slopes.data);
  f.sinks = static_cast<const float*>(t.sinks.data);
  fill_mod_buffers(t, f.mod_buffers);
}

ForwardState::ForwardState(const Request& request, const DeviceFacts& device, const ForwardFeatures& features,
                           const TileCut& cut)
    : PlanState(request.problem),
      device_(device),
      features_(features),
      cut_(cut),
      decided_(decided_params(*problem, cut, device.l2_bytes)) {
  workspace_bytes = decided_.tiles == 0 ? 0 : forward_workspace_bytes(*problem, cut);
}

const Kernel& ForwardState::kernel(Stream stream) const {
  const Kernel* known = kernel_.load(std::memory_order_acquire);
  if (!known) kernel_.store(known = &load(stream), std::memory_order_release);
  return *known;
}

void ForwardState::prepare() const {
  if (decided_.tiles == 0) return;
  kernel(nullptr);
  if (problem->bool_mask) load_mask_kernel(device_, nullptr);
}

void ForwardState::run(const Tensors& tensors, void* workspace, Executor&, void* stream_) const {
  if (decided_.tiles == 0) return;
  const auto stream = static_cast<Stream>(stream_);
  const Kernel& loaded = kernel(stream);
  const ContextScope scope(device_);
  ForwardParams params = decided_;
  bind(params, tensors, workspace);
  params.counters = stream_counters(device_, stream);
  if (!params.counters) {
    params.counters = static_cast<unsigned*>(workspace);
    must(driver()->memset8(reinterpret_cast<DevicePtr>(workspace), 0, kCounterBytes, stream), "cuMemsetD8Async");
  }
  if (problem->bool_mask)
    params.mask = pack_mask(*problem, tensors, cut_, mask_place(*problem, cut_, workspace), device_, stream);
  launch_with(loaded, tensors, params, stream);
}

}  // namespace onepass::cuda
