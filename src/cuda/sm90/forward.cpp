#include "cuda/sm90/forward.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/arguments.hpp"
#include "core/roles.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/mods.hpp"
#include "cuda/host/kernels.hpp"
#include "cuda/host/wgmma_text.hpp"
#include "onepass/error.hpp"

namespace onepass::sm90 {
namespace {

constexpr int kAny = std::numeric_limits<int>::max();

// What a row of the table has registers and shared memory for. plain: band, sinks; light: mask, softcap, ALiBi, packing
// besides; staged: a 16-bit bias by TMA too; any: all.
enum class Work { plain, light, staged, any };

// Rows in order; the first that fits is taken. README.md has the measurements behind each.
struct Shape {
  int dim_qk, dim_v, queries, reach;  // up to these
  bool bounded;                       // only for bands bounded on the right
  Work work;
  int groups, block_n, stages, q_stages;
  bool flat, ping_pong, q_registers;
};
constexpr Shape kShapes[] = {
    // dims  queries reach bounded work | groups n stages q | flat  turns  q in registers
    {64, 64, 2047, kAny, true, Work::staged, 2, 128, 2, 1, true, true, true},  // no tile quantisation at 1k
    {64, 64, kAny, kAny, false, Work::light, 3, 128, 2, 2, true, true, false},
    {64, 64, kAny, kAny, false, Work::light, 2, 128, 2, 2, true, true, false},
    {64, 64, kAny, kAny, false, Work::staged, 3, 128, 2, 1, false, true, false},
    {64, 64, kAny, kAny, false, Work::staged, 2, 128, 2, 1, true, true, true},
    {128, 128, kAny, 6143, true, Work::light, 2, 128, 2, 2, true, true, false},
    {128, 128, kAny, 1535, false, Work::light, 2, 128, 2, 2, true, false, false},
    {128, 128, kAny, kAny, false, Work::plain, 3, 80, 2, 2, true, true, false},  // a third less of K and V from L2
    {128, 128, kAny, kAny, true, Work::light, 2, 128, 2, 2, true, true, false},
    {128, 128, kAny, kAny, false, Work::light, 2, 128, 2, 2, true, false, false},
    {128, 128, kAny, kAny, false, Work::staged, 2, 128, 2, 1, true, true, true},
    {128, 128, kAny, kAny, false, Work::any, 2, 64, 2, 2, false, false, false},
    {192, 128, kAny, kAny, false, Work::light, 2, 96, 2, 1, false, false, false},
    {192, 192, kAny, kAny, false, Work::light, 2, 80, 2, 1, false, false, false},
    {192, 192, kAny, kAny, false, Work::staged, 2, 64, 2, 1, false, false, false},
    {256, 256, kAny, kAny, false, Work::light, 2, 64, 2, 1, false, false, false},
    {256, 256, kAny, kAny, false, Work::any, 2, 32, 2, 1, false, false, false},
};
// The number of queries, or of the keys that a row's window shows if they are fewer: the shorter, the more weighs what
// 192 rows waste along the diagonal and at the end.
std::int64_t reach_of(const Problem& p) {
  const BandMask band = band_mask(p, p.seq_q, p.seq_k);
  return band.left < 0 || band.right < 0 ? p.seq_q : std::min<std::int64_t>(p.seq_q, band.left + band.right + 1);
}
Work work_of(const ForwardFeatures& f, bool staged) {
  const bool heavy = f.dropout || f.score_mod || f.mask_mod;
  if (heavy || (f.bias != Type::none && (!staged || f.bias == Type::f32))) return Work::any;
  if (f.bias != Type::none) return Work::staged;
  return f.plain() ? Work::plain : Work::light;
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

int alignment_of(const Problem& p, Role role) { return p.alignment[static_cast<std::size_t>(role)]; }

std::string why_not_aligned(const Problem& p) {
  for (const Role role : {Role::q, Role::k, Role::v, Role::out}) {
    if (alignment_of(p, role) < 16)
      return text("TMA needs tensors that start at multiples of 16 bytes; ", row_of(role).name, " starts at one of ",
                  alignment_of(p, role));
  }
  return {};
}

cuda::TileCut cut_of(const ForwardConfig& c) { return {64 * c.groups, c.block_n, 4 * c.groups}; }

class State final : public cuda::ForwardState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const ForwardConfig& config)
      : ForwardState(request, device, cuda::features_of(*request.problem), cut_of(config)),
        config_(config),
        layout_(layout_of(features_, config)) {}

  std::string describe() const override {
    const ForwardConfig& c = config_;
    return text(64 * c.groups, " x ", c.block_n, " tiles, ", c.groups, " consumer warpgroups, ", c.stages,
                " K/V stages, ", c.q_stages, " Q stages", c.flat ? ", flat" : "", c.ping_pong ? ", ping-pong" : "",
                c.q_registers ? ", Q in registers" : "", c.bias_stages ? ", bias by TMA" : "", ", ", layout_.total,
                " bytes of shared memory");
  }

 private:
  const cuda::Kernel& load(cuda::Stream stream) const override {
    static cuda::KernelTable<std::tuple<ForwardFeatures, ForwardConfig, std::string>> kernels;
    return kernels.find(device_.ordinal, {features_, config_, cuda::mods_key(*problem)}, layout_.total, stream,
                        [&] { return program_of(features_, config_, cuda::mods_text(*problem)); });
  }
  void launch_with(const cuda::Kernel& kernel, const Tensors& tensors, ForwardParams& params,
                   cuda::Stream stream) const override {
    TensorMaps maps = maps_of(*problem, tensors, config_, cuda::tensor_map);
    void* arguments[] = {&maps.q, &maps.k, &maps.v, &maps.out, &maps.bias, &params};
    cuda::launch(kernel, static_cast<unsigned>(std::min(params.tiles, device_.multiprocessors)),
                 static_cast<unsigned>(128 * (config_.groups + 1)), layout_.total, stream, arguments);
  }

  const ForwardConfig config_;
  const ForwardLayout layout_;
};

Decision plan(const Request& request) {
  ForwardConfig config;
  std::string why;
  const cuda::DeviceFacts* const device = cuda::device_of(*request.problem, why);
  if (!device || !config_on(*device, *request.problem, config, why)) return Decision::no(std::move(why));
  return {{}, std::make_shared<State>(request, *device, config)};
}

}  // namespace

bool stages_bias(const Problem& p) {
  if (!p.bias) return false;
  const Dims& s = p.layout.bias;
  return s[3] == 1 && why_no_tma("bias", s, size_of(p.bias->dtype)).empty() && alignment_of(p, Role::bias) >= 16;
}

TensorMaps maps_of(const Problem& p, const Tensors& a, const ForwardConfig& c, MapTensor map_tensor) {
  const std::int64_t batch = p.varlen ? 1 : p.batch, tokens_q = p.varlen ? p.total_q : p.seq_q,
                     tokens_k = p.varlen ? p.total_k : p.seq_k;
  const auto map = [&](const ConstTensor& t, const Dims& stride, std::int64_t heads, std::int64_t tokens,
                       std::int64_t dim, int rows) {
    return map_tensor(t.data, p.dtype, {dim, tokens, heads, batch}, {stride[2], stride[1], stride[0]}, rows);
  };
  TensorMaps maps{};
  maps.q = map(a.q, p.layout.q, p.heads_q, tokens_q, p.dim_qk, 64 * c.groups);
  maps.k = map(tokens_k > 0 ? a.k : a.q, p.layout.k, p.heads_kv, tokens_k, p.dim_qk, c.block_n);
  maps.v = map(tokens_k > 0 ? a.v : a.q, p.layout.v, p.heads_kv, tokens_k, p.dim_v, c.block_n);
  maps.out = p.out_dtype == DType::f32 ? maps.q : map(a.out, p.layout.out, p.heads_q, tokens_q, p.dim_v, 16);
  maps.bias = maps.q;
  if (c.bias_stages > 0) {
    const Dims& s = p.layout.bias;
    maps.bias = map_tensor(a.bias.data, a.bias.dtype, {p.seq_k, p.seq_q, p.heads_q, p.batch}, {s[2], s[1], s[0]}, 64);
  }
  return maps;
}

bool config_on(const cuda::DeviceFacts& device, const Problem& p, ForwardConfig& c, std::string& why) {
  if (device.major == 9) return shape_of(p, c, why);
  why = text("it is written for compute capability 9.0; ", device.name, " has ", device.major, ".", device.minor);
  return false;
}

bool shape_of(const Problem& p, ForwardConfig& c, std::string& why) {
  const auto refuse = [&](std::string sentence) {
    why = std::move(sentence);
    return false;
  };
  if (p.dtype == DType::f32) return refuse("it computes fp16 and bf16; q is fp32");
  if (p.dim_qk > 256 || p.dim_v > 256)
    return refuse(text("head dims up to 256 fit its registers; they are ", p.dim_qk, "/", p.dim_v));
  for (const auto& [name, stride] : {std::pair{"q", &p.layout.q}, {"k", &p.layout.k}, {"v", &p.layout.v}}) {
    if (std::string s = why_no_tma(name, *stride, size_of(p.dtype)); !s.empty()) return refuse(s);
  }
  if (p.out_dtype != DType::f32) {
    if (std::string s = why_no_tma("out", p.layout.out, 2); !s.empty()) return refuse(s);
  }
  if (std::string s = why_not_aligned(p); !s.empty()) return refuse(s);
  constexpr std::int64_t kMax = cuda::kMaxPosition;
  const std::int64_t tiles = p.batch * p.heads_q * ((p.seq_q + 127) / 128 + 1);
  if (std::max({p.seq_q, p.seq_k, p.total_q, p.total_k, p.batch, p.heads_q, tiles}) > kMax)
    return refuse("sequences, heads and tiles are counted in 32 bits");
  if (std::string s = why_no_alibi(p, kMax); !s.empty()) return refuse(s);

  c = {};
  const ForwardFeatures f = cuda::features_of(p);
  const bool staged = stages_bias(p);
  const Work work = work_of(f, staged);
  for (const Shape& s : kShapes) {
    // What three warpgroups, Q in registers, and packed sequences leave no registers for.
    const bool sums = f.output == Type::f32, bias = f.bias != Type::none;
    const bool both = (f.hides() && f.transforms()) || (bias && f.softcap);
    const bool crowded = (s.groups == 3 && (sums || f.packed || both)) ||
                         (s.q_registers && (f.packed || (bias && (sums || f.softcap)))) ||
                         (s.block_n > 64 && f.packed && f.transforms());
    if (f.dim_qk > s.dim_qk || f.dim_v > s.dim_v || p.seq_q > s.queries || reach_of(p) > s.reach ||
        (s.bounded && !f.bounded_right) || s.work < work || crowded || (f.bool_mask && s.block_n % 32 != 0))
      continue;
    c.groups = s.groups;
    c.block_n = s.block_n;
    c.stages = s.stages;
    c.q_stages = s.q_stages;
    c.flat = s.flat;
    c.ping_pong = s.ping_pong;
    c.q_registers = s.q_registers;
    c.bias_stages = staged && s.block_n * (f.bias == Type::f32 ? 4 : 2) % 128 == 0 ? 1 : 0;  // whole boxes
    break;
  }
  // Sums to 64 K with 128 producer threads; what each role was seen to need without a spill.
  const bool wide = std::max(f.dim_qk, f.dim_v) > 128;
  const bool roomy = work == Work::any || f.packed;
  c.producer_registers = c.groups == 3 ? 32 : roomy ? 56 : wide ? 40 : 24;
  c.consumer_registers = c.groups == 3 ? 160 : roomy ? 224 : wide ? 232 : 240;
  return true;
}

cuda::KernelProgram program_of(const ForwardFeatures& f, const ForwardConfig& c, const std::string& mods) {
  using cuda::word;
  const std::string fields =
      text(c.groups, ", ", c.block_n, ", ", c.stages, ", ", c.q_stages, ", ", word(c.flat), ", ", word(c.ping_pong),
           ", ", word(c.q_registers), ", ", c.bias_stages, ", ", c.producer_registers, ", ", c.consumer_registers);
  return {"cuda/sm90/forward.cuh",
          "attention_forward",
          text(cuda::features_text(f), "#include \"cuda/sm90/forward_config.hpp\"\n",
               "namespace onepass::sm90 { constexpr ForwardConfig config = {", fields, "}; }"),
          "sm_90a",
          mods,
          cuda::wgmma_text({c.block_n, padded(f.dim_v, 16)}, f.input == Type::bf16 ? "bf16" : "f16")};
}

const Implementation& forward_implementation() {
  static const Implementation row{"cuda.sm90", plan};
  return row;
}

}  // namespace onepass::sm90
