#include "cuda/sm90/forward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/arguments.hpp"
#include "core/scalar.hpp"
#include "cuda/host/kernels.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/host/wgmma_text.hpp"
#include "onepass/error.hpp"

namespace onepass::sm90 {
namespace {

constexpr int kAny = std::numeric_limits<int>::max();

// Rows in order; the first that fits is taken. README.md has the measurements behind each.
struct Shape {
  int dim_qk, dim_v, seq;  // up to these head dims and this many queries
  bool bounded,
      plain;  // bounded: only for bands bounded on the right; plain: only without score transforms, masks, dropout
  int groups, block_n, stages, q_stages;
  bool flat, ping_pong, q_registers;
};
constexpr Shape kShapes[] = {
    // dims    seq  bounded plain | groups n stages q | flat  turns  q in registers
    {64, 64, 2047, true, true, 2, 128, 2, 1, true, true, true},  // no tile quantisation at 1k
    {64, 64, kAny, false, true, 3, 128, 2, 2, true, true, false},
    {128, 128, kAny, true, true, 2, 128, 2, 1, true, true, true},
    {128, 128, kAny, false, true, 2, 128, 2, 2, true, false, false},
    {128, 128, kAny, false, false, 2, 64, 2, 2, false, false, false},  // room for the transforms' registers
    {192, 128, kAny, false, true, 2, 96, 2, 1, false, false, false},
    {192, 192, kAny, false, true, 2, 80, 2, 1, false, false, false},
    {256, 256, kAny, false, true, 2, 64, 2, 1, false, false, false},
    {256, 256, kAny, false, false, 2, 32, 2, 1, false, false, false},
};

bool is_plain(const ForwardConfig& c) {
  return !c.softcap && !c.alibi && !c.bool_mask && !c.dropout && c.bias == Extra::none && !c.packed;
}

Extra extra_of(const std::optional<BiasSpec>& bias) {
  if (!bias) return Extra::none;
  return bias->dtype == DType::f32 ? Extra::f32 : bias->dtype == DType::f16 ? Extra::f16 : Extra::bf16;
}

// TMA reads rows whose distances are multiples of 16 bytes.
std::string why_no_tma(const char* name, const Dims& stride, std::size_t element) {
  for (int i = 0; i < 3; ++i) {
    if (stride[i] < 0 || stride[i] * static_cast<std::int64_t>(element) % 16 != 0) {
      return text("TMA needs strides that are multiples of 16 bytes; ", name, " has one of ",
                  stride[i] * static_cast<std::int64_t>(element));
    }
  }
  return {};
}

std::string why_not(const Problem& p) {
  ForwardConfig config;
  std::string why;
  return config_for(p, config, why) ? std::string() : why;
}

std::string describe(const Problem& p) {
  ForwardConfig c;
  std::string why;
  if (!config_for(p, c, why)) return why;
  return text(64 * c.groups, " x ", c.block_n, " tiles, ", c.groups, " consumer warpgroups, ", c.stages,
              " K/V stages, ", c.q_stages, " Q stages", c.flat ? ", flat" : "", c.ping_pong ? ", ping-pong" : "",
              c.q_registers ? ", Q in registers" : "", ", ", layout_of(c).total, " bytes of shared memory");
}

const char* word(bool b) { return b ? "true" : "false"; }

// How many heads are worked on together. Causal: many, so that the short tiles come last; few where one head's K and V
// are large, so that all of them stay in L2 (measured: 4 at d128 16k, 791 against 690-773 TFLOP/s). A divisor of the
// heads.
int heads_together(const ForwardConfig& c, const Problem& p, int l2_bytes) {
  const std::int64_t heads = std::max<std::int64_t>(1, p.batch * p.heads_q);
  if (!c.bounded_right) return 1;
  const double kv = static_cast<double>(p.seq_k * (p.dim_qk + p.dim_v) * 2);
  std::int64_t g = p.dim_qk <= 128 && kv >= 4e6 ? static_cast<std::int64_t>(0.55 * l2_bytes / kv) : 32;
  g = std::clamp<std::int64_t>(g, 1, heads);
  while (heads % g != 0) --g;
  return static_cast<int>(g);
}

// Tiles of the problem. Packed: an upper bound; the kernel counts them from the lengths.
std::int64_t tile_bound(const ForwardConfig& c, const Problem& p) {
  const int block_m = 64 * c.groups;
  const std::int64_t a_head = p.varlen ? p.total_q / block_m + p.batch : p.batch * ((p.seq_q + block_m - 1) / block_m);
  return a_head * p.heads_q;
}

void fill_strides(long long (&to)[3], const Dims& from) { std::copy(from.begin(), from.begin() + 3, to); }

ForwardParams params_of(const ForwardConfig& c, const Problem& p, const Arguments& a, unsigned* counters,
                        int l2_bytes) {
  ForwardParams f{};
  f.q = static_cast<const unsigned short*>(a.q.data);
  f.k = static_cast<const unsigned short*>(a.k.data);
  f.v = static_cast<const unsigned short*>(a.v.data);
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
  f.counters = counters;
  f.redo = reinterpret_cast<RedoEntry*>(counters + 16);
  f.cu_q = static_cast<const int*>(a.cu_seqlens_q.data);
  f.cu_k = static_cast<const int*>(a.cu_seqlens_k.data);
  if (p.bias) {
    const Dims s = spread_strides(a.bias);
    std::copy(s.begin(), s.end(), f.bias_stride);
    f.bias = a.bias.data;
  }
  if (p.bool_mask) {
    const Dims s = spread_strides(a.bool_mask);
    std::copy(s.begin(), s.end(), f.mask_stride);
    f.bool_mask = static_cast<const unsigned char*>(a.bool_mask.data);
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
  const auto side = [&](Index n) { return n < 0 ? -1 : static_cast<int>(std::min<Index>(n, p.seq_q + p.seq_k)); };
  f.left = side(band.left);
  f.right = side(band.right);
  f.align_bottom = p.band.align == Align::bottom_right;
  f.scale_log2 = static_cast<float>(p.effective_scale() * kLog2e);
  f.cap_in = p.softcap > 0 ? static_cast<float>(p.effective_scale() / p.softcap) : 0.0f;
  f.cap_out = static_cast<float>(p.softcap * kLog2e);
  f.dropout = Dropout::of(p.dropout_p, p.seed);
  const int block_m = 64 * c.groups;
  f.m_tiles = static_cast<int>((p.seq_q + block_m - 1) / block_m);
  f.heads_together = heads_together(c, p, l2_bytes);
  f.tiles = static_cast<int>(tile_bound(c, p));
  return f;
}

void run(const Problem& p, const Arguments& a, void* workspace, Executor&, void* stream_) {
  ForwardConfig c;
  std::string why;
  if (!config_for(p, c, why)) throw Error(ErrorCode::unsupported, why);
  const auto stream = static_cast<cuda::Stream>(stream_);
  const cuda::DeviceFacts& device = cuda::device_facts(p.device.index);
  ForwardParams params = params_of(c, p, a, static_cast<unsigned*>(workspace), device.l2_bytes);
  if (params.tiles == 0) return;
  const ForwardLayout layout = layout_of(c);
  const cuda::Kernel& kernel = cuda::kernel_for(device.ordinal, program_of(c), layout.total, stream);
  const cuda::ContextScope scope(device);
  const std::int64_t batch = p.varlen ? 1 : p.batch, tokens_q = p.varlen ? p.total_q : p.seq_q,
                     tokens_k = p.varlen ? p.total_k : p.seq_k;
  const auto map = [&](const Tensor& t, const Dims& stride, std::int64_t heads, std::int64_t tokens, std::int64_t dim,
                       int rows) {
    return cuda::tensor_map_16(t.data, c.is_bf16, {dim, tokens, heads, batch}, {stride[2], stride[1], stride[0]}, rows);
  };
  cuda::TensorMap q = map(a.q, p.layout.q, p.heads_q, tokens_q, p.dim_qk, 64 * c.groups);
  cuda::TensorMap k = map(tokens_k > 0 ? a.k : a.q, p.layout.k, p.heads_kv, tokens_k, p.dim_qk, c.block_n);
  cuda::TensorMap v = map(tokens_k > 0 ? a.v : a.q, p.layout.v, p.heads_kv, tokens_k, p.dim_v, c.block_n);
  cuda::TensorMap out = c.out_f32 ? q : map(a.out, p.layout.out, p.heads_q, tokens_q, p.dim_v, 64);
  cuda::must(cuda::driver()->memset8(reinterpret_cast<cuda::DevicePtr>(workspace), 0, 64, stream), "cuMemsetD8Async");
  void* arguments[] = {&q, &k, &v, &out, &params};
  cuda::launch(kernel, static_cast<unsigned>(std::min(params.tiles, device.multiprocessors)),
               static_cast<unsigned>(128 * (c.groups + 1)), layout.total, stream, arguments);
}

}  // namespace

bool config_for(const Problem& p, ForwardConfig& c, std::string& why) {
  if (p.device.kind != DeviceKind::cuda) {
    why = "it computes on CUDA devices only";
    return false;
  }
  if (!cuda::driver(&why)) return false;
  if (const cuda::DeviceFacts& d = cuda::device_facts(p.device.index); d.major != 9) {
    why = text("it is written for compute capability 9.0; ", d.name, " has ", d.major, ".", d.minor);
    return false;
  }
  return shape_of(p, c, why);
}

bool shape_of(const Problem& p, ForwardConfig& c, std::string& why) {
  const auto refuse = [&](std::string sentence) {
    why = std::move(sentence);
    return false;
  };
  if (p.dtype == DType::f32) return refuse("it computes fp16 and bf16; q is fp32");
  if (p.dim_qk > 256 || p.dim_v > 256)
    return refuse(text("head dims up to 256 fit its registers; they are ", p.dim_qk, "/", p.dim_v));
  for (const auto& [name, stride, dtype] :
       {std::tuple{"q", &p.layout.q, p.dtype}, std::tuple{"k", &p.layout.k, p.dtype},
        std::tuple{"v", &p.layout.v, p.dtype}}) {
    if (std::string s = why_no_tma(name, *stride, size_of(dtype)); !s.empty()) return refuse(s);
  }
  if (p.out_dtype != DType::f32) {
    if (std::string s = why_no_tma("out", p.layout.out, 2); !s.empty()) return refuse(s);
  }
  constexpr std::int64_t kMost = std::numeric_limits<int>::max() / 4;
  const std::int64_t tiles = p.batch * p.heads_q * ((p.seq_q + 127) / 128 + 1);
  if (std::max({p.seq_q, p.seq_k, p.total_q, p.total_k, p.batch, p.heads_q, tiles}) > kMost)
    return refuse("sequences, heads and tiles are counted in 32 bits");

  c = {};
  c.dim_qk = static_cast<int>(p.dim_qk);
  c.dim_v = static_cast<int>(p.dim_v);
  c.is_bf16 = p.dtype == DType::bf16;
  c.out_f32 = p.out_dtype == DType::f32;
  const BandMask band = band_mask(p, p.seq_q, p.seq_k);
  c.bounded_left = band.left >= 0;
  c.bounded_right = band.right >= 0;
  c.packed = p.varlen;
  c.softcap = p.softcap > 0;
  c.alibi = p.alibi;
  c.sinks = p.sinks;
  c.dropout = Dropout::of(p.dropout_p, 0).active();
  c.bool_mask = p.bool_mask.has_value();
  c.bias = extra_of(p.bias);
  for (const Shape& s : kShapes) {
    if (c.dim_qk > s.dim_qk || c.dim_v > s.dim_v || p.seq_q > s.seq || (s.bounded && !c.bounded_right) ||
        (s.plain && !is_plain(c)))
      continue;
    c.groups = s.groups;
    c.block_n = s.block_n;
    c.stages = s.stages;
    c.q_stages = s.q_stages;
    c.flat = s.flat;
    c.ping_pong = s.ping_pong;
    c.q_registers = s.q_registers;
    break;
  }
  // Sums to 64 K with 128 producer threads; what each role was seen to need without a spill.
  const bool wide = std::max(c.dim_qk, c.dim_v) > 128;
  c.producer_registers = !is_plain(c) ? 56 : c.groups == 3 ? 32 : wide ? 40 : 24;
  c.consumer_registers = !is_plain(c) ? 224 : c.groups == 3 ? 160 : wide ? 232 : 240;
  return true;
}

cuda::KernelProgram program_of(const ForwardConfig& c) {
  const char* const extras[] = {"none", "f32", "f16", "bf16"};
  const std::string fields =
      text(c.dim_qk, ", ", c.dim_v, ", ", word(c.is_bf16), ", ", word(c.out_f32), ", ", c.groups, ", ", c.block_n, ", ",
           c.stages, ", ", c.q_stages, ", ", word(c.flat), ", ", word(c.ping_pong), ", ", word(c.q_registers), ", ",
           c.producer_registers, ", ", c.consumer_registers, ", ", word(c.bounded_left), ", ", word(c.bounded_right),
           ", ", word(c.packed), ", ", word(c.softcap), ", ", word(c.alibi), ", ", word(c.sinks), ", ", word(c.dropout),
           ", ", word(c.bool_mask), ", Extra::", extras[static_cast<int>(c.bias)]);
  return {"cuda/sm90/forward.cuh", "attention_forward",
          text("#include \"cuda/sm90/forward_config.hpp\"\n#include \"cuda/device/wgmma.cuh\"\n",
               cuda::wgmma_text({c.block_n, padded(c.dim_v, 16)}, c.is_bf16 ? "bf16" : "f16"),
               "namespace onepass::sm90 { constexpr ForwardConfig config = {", fields, "}; }"),
          "sm_90a", ""};
}

namespace {

std::size_t workspace_bytes(const Problem& p, int) {
  ForwardConfig c;
  std::string why;
  return config_for(p, c, why) ? 64 + sizeof(RedoEntry) * 4 * static_cast<std::size_t>(c.groups) *
                                          static_cast<std::size_t>(tile_bound(c, p))
                               : 0;
}

}  // namespace

const Implementation& forward_implementation() {
  static const Implementation row{"cuda.sm90", why_not, describe, workspace_bytes, run};
  return row;
}

}  // namespace onepass::sm90
