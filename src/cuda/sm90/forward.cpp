#include "cuda/sm90/forward.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <tuple>

#include "core/arguments.hpp"
#include "core/roles.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/mods.hpp"
#include "cuda/host/initializer.hpp"
#include "cuda/host/kernels.hpp"
#include "cuda/host/wgmma_source.hpp"
#include "cuda/sm90/fp8_config.hpp"
#include "cuda/sm90/host.hpp"
#include "onepass/error.hpp"

namespace onepass::sm90 {
namespace {

constexpr int kAny = std::numeric_limits<int>::max();

// What a row of the table has registers and shared memory for. plain: band, sinks; light: mask, softcap, ALiBi, packing
// besides; staged: a 16-bit bias by TMA too; any: all.
enum class Work { plain, light, staged, any };

// What takes registers that a row may not have, alone or together.
enum Crowding : unsigned {
  kNone = 0,
  kFp32Out = 1,           // a second sum for each row
  kPacked = 2,            // O's last rows leave by plain stores
  kMaskedTransforms = 4,  // masks beyond the band, and transforms
  kCappedBias = 8,
  kFp32OutBias = 16,
  kPackedTransforms = 32,
};
unsigned crowding_of(const ForwardFeatures& features) {
  const AttentionFeatures& f = features.attention;
  const bool fp32_out = features.output == ScalarType::f32, bias = f.bias != ScalarType::none;
  const auto if_so = [](bool so, Crowding what) { return so ? what : kNone; };
  return if_so(fp32_out, kFp32Out) | if_so(f.own_lengths(), kPacked) |
         if_so(f.masks() && f.transforms(), kMaskedTransforms) | if_so(bias && f.softcap, kCappedBias) |
         if_so(fp32_out && bias, kFp32OutBias) | if_so(f.own_lengths() && f.transforms(), kPackedTransforms);
}

// Registers of a producer's and of a consumer's thread. Sums to 64 K with 128 producers; what each role was seen to
// need without a spill.
struct Registers {
  int producer, consumer;
};
constexpr Registers kThree{32, 160}, kLean{24, 240}, kWide{40, 232}, kRoomy{56, 224};

// Rows in order; the first that fits is taken. README.md has the measurements behind each.
struct TileConfig {
  int dim_qk, dim_v, queries, reach;  // up to these
  bool bounded;                       // only for bands bounded on the right
  Work work;
  unsigned without;  // the crowding that it has no registers for
  int groups, block_n, stages, q_stages;
  bool cross_tile, ping_pong, q_registers;
  Registers registers, heavy;  // heavy: of packed problems and those of Work::any
  int column_groups = 64;      // where dim_v is at most this. Causal 1k: d64 362 -> 376 TFLOP/s, d128 none, 4k -1 %
  bool early_softmax = true;   // but not with column groups: it spills (d64 causal: -2 %)
};
constexpr unsigned kNotThree = kFp32Out | kPacked | kMaskedTransforms | kCappedBias;
constexpr unsigned kNotFragments = kPacked | kCappedBias | kFp32OutBias;  // Q as fragments takes 16 to 32 registers
constexpr TileConfig kConfigs[] = {
    // dims  queries reach bounded work without
    // groups n stages q | across tiles, turns, Q in registers | registers, heavy
    {64, 64, 2047, kAny, true, Work::staged, kNotFragments,  // no tile quantisation at 1k
     2, 128, 2, 1, true, true, true, kLean, kRoomy},
    {64, 64, kAny, kAny, false, Work::light, kNotThree,  //
     3, 128, 2, 2, true, true, false, kThree, kThree},
    {64, 64, kAny, kAny, false, Work::light, kPackedTransforms,  //
     2, 128, 2, 2, true, true, false, kLean, kRoomy},
    {64, 64, kAny, kAny, false, Work::staged, kNotThree,  //
     3, 128, 2, 1, false, true, false, kThree, kThree},
    {64, 64, kAny, kAny, false, Work::staged, kNotFragments,  //
     2, 128, 2, 1, true, true, true, kLean, kRoomy},
    {128, 128, kAny, 6143, true, Work::light, kPackedTransforms,  //
     2, 128, 2, 2, true, true, false, kLean, kRoomy},
    {128, 128, kAny, 1535, false, Work::light, kPackedTransforms,  //
     2, 128, 2, 2, true, false, false, kLean, kRoomy},
    {128, 128, kAny, kAny, false, Work::plain, kNotThree,  // a third less of K and V from L2
     3, 80, 2, 2, true, true, false, kThree, kThree},
    {128, 128, kAny, kAny, true, Work::light, kPackedTransforms,  //
     2, 128, 2, 2, true, true, false, kLean, kRoomy},
    {128, 128, kAny, kAny, false, Work::light, kPackedTransforms,  //
     2, 128, 2, 2, true, false, false, kLean, kRoomy},
    {128, 128, kAny, kAny, false, Work::staged, kNotFragments,  //
     2, 128, 2, 1, true, true, true, kLean, kRoomy},
    {128, 128, kAny, kAny, false, Work::any, kNone,  //
     2, 64, 2, 2, false, false, false, kLean, kRoomy},
    {192, 128, kAny, kAny, false, Work::light, kPackedTransforms,  //
     2, 96, 2, 1, false, false, false, kWide, kRoomy},
    {192, 192, kAny, kAny, false, Work::light, kPackedTransforms,  //
     2, 80, 2, 1, false, false, false, kWide, kRoomy},
    {192, 192, kAny, kAny, false, Work::staged, kNone,  //
     2, 64, 2, 1, false, false, false, kWide, kRoomy},
    {256, 256, kAny, kAny, false, Work::light, kNone,  //
     2, 64, 2, 1, false, false, false, kWide, kRoomy},
    {256, 256, kAny, kAny, false, Work::any, kNone,  //
     2, 32, 2, 1, false, false, false, kWide, kRoomy},
};
// The number of queries, or of the keys that a row's window shows if they are fewer: the shorter, the more weighs what
// 192 rows waste along the diagonal and at the end.
std::int64_t reach_of(const Problem& p) {
  const BandMask band = band_mask(p, p.seq_q, p.seq_k);
  return band.left < 0 || band.right < 0 ? p.seq_q : std::min<std::int64_t>(p.seq_q, band.left + band.right + 1);
}
Work work_of(const AttentionFeatures& f, bool staged) {
  const bool heavy = f.dropout || f.score_mod || f.mask_mod;
  if (heavy || (f.bias != ScalarType::none && (!staged || f.bias == ScalarType::f32))) return Work::any;
  if (f.bias != ScalarType::none) return Work::staged;
  return f.plain() ? Work::plain : Work::light;
}

// A tensor from a column on.
ConstTensor columns_of(ConstTensor t, std::int64_t first) {
  t.data = static_cast<const std::byte*>(t.data) + first * static_cast<std::int64_t>(size_of(t.dtype));
  return t;
}

cuda::TileShape tile_shape_of(const ForwardConfig& c) { return {64 * c.groups, c.block_n, 4 * c.groups}; }

class State final : public cuda::ForwardState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const ForwardConfig& config)
      : ForwardState(request, device, sm90::features_of(*request.problem, config), tile_shape_of(config)),
        config_(config),
        layout_(layout_of(features_, config)) {}

  std::string describe() const override {
    const ForwardConfig& c = config_;
    return text(64 * c.groups, " x ", c.block_n, " tiles, ", c.groups, " consumer warpgroups, ", c.stages,
                " K/V stages, ", c.q_stages, " Q stages", c.cross_tile ? ", cross-tile" : "",
                c.ping_pong ? ", ping-pong" : "", c.q_registers ? ", Q in registers" : "",
                c.bias_stages ? ", bias by TMA" : "",
                c.raw_stages ? text(", V transposed by 3 warps, ", accumulation_of(c)) : "", ", ", layout_.total,
                " bytes of shared memory");
  }

 private:
  const cuda::Kernel& load(cuda::Stream stream) const override {
    static cuda::KernelTable<std::tuple<ForwardFeatures, ForwardConfig, std::string>> kernels;
    return kernels.find(device_.ordinal, {features_, config_, cuda::mods_key(*problem)}, layout_.total, stream,
                        [&] { return program_of(features_, config_, cuda::mods_source(*problem)); });
  }
  void launch_with(const cuda::Kernel& kernel, const Tensors& tensors, ForwardParams& params,
                   cuda::Stream stream) const override {
    for (int part = 0; part < config_.v_parts; ++part) {
      TensorMaps maps = maps_of(*problem, tensors, config_, cuda::tensor_map, part);
      params.v = columns_of(tensors.v, part * features_.attention.dim_v).data;
      params.out = const_cast<void*>(columns_of(tensors.out, part * features_.attention.dim_v).data);
      void* arguments[] = {&maps.q, &maps.k, &maps.v, &maps.out, &maps.bias, &params};
      cuda::launch(kernel, static_cast<unsigned>(std::min(params.tiles, device_.multiprocessors)),
                   static_cast<unsigned>(128 * (config_.groups + 1)), layout_.total, stream, arguments);
    }
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

ForwardFeatures features_of(const Problem& p, const ForwardConfig& c) {
  ForwardFeatures f = cuda::features_of(p);
  f.attention.dim_v /= c.v_parts;
  return f;
}

TensorMaps maps_of(const Problem& p, const Tensors& a, const ForwardConfig& c, MapTensor map_tensor, int part) {
  const std::int64_t dim_v = p.dim_v / c.v_parts, first = part * dim_v;
  // As the kernels see them: tokens of a batch entry, of all packed sequences, of a page.
  struct Rows {
    std::int64_t batch, tokens;
  };
  const Rows queries = p.varlen ? Rows{1, p.total_q} : Rows{p.batch, p.seq_q};
  const Rows keys = p.paged() ? Rows{p.pages, p.page_size} : p.packed_k() ? Rows{1, p.total_k} : Rows{p.batch, p.seq_k};
  const auto map = [&](const ConstTensor& t, const Dims& stride, std::int64_t heads, const Rows& of, std::int64_t dim,
                       int rows) {
    return map_tensor(t.data, t.dtype, {dim, of.tokens, heads, of.batch}, {stride[2], stride[1], stride[0]}, rows);
  };
  TensorMaps maps{};
  maps.q = map(a.q, p.layout.q, p.heads_q, queries, p.dim_qk, 64 * c.groups);
  const bool any = keys.tokens > 0 && keys.batch > 0;
  maps.k = map(any ? a.k : a.q, p.layout.k, p.heads_kv, keys, p.dim_qk, c.key_rows());
  maps.v = map(any ? columns_of(a.v, first) : a.q, p.layout.v, p.heads_kv, keys, dim_v, c.key_rows());
  maps.out =
      p.out_dtype == DType::f32 ? maps.q : map(columns_of(a.out, first), p.layout.out, p.heads_q, queries, dim_v, 16);
  maps.bias = maps.q;
  if (c.bias_stages > 0) {
    const Dims& s = p.layout.bias;
    maps.bias = map_tensor(a.bias.data, a.bias.dtype, {p.seq_k, p.seq_q, p.heads_q, p.batch}, {s[2], s[1], s[0]}, 64);
  }
  return maps;
}

bool config_on(const cuda::DeviceFacts& device, const Problem& p, ForwardConfig& c, std::string& why) {
  if (device.major == 9) return select_config(p, c, why);
  why = text("it is written for compute capability 9.0; ", device.name, " has ", device.major, ".", device.minor);
  return false;
}

bool select_config(const Problem& p, ForwardConfig& c, std::string& why) {
  const auto refuse = [&](std::string sentence) {
    why = std::move(sentence);
    return false;
  };
  if (p.dtype == DType::f32) return refuse("it computes fp16 and bf16; q is fp32");
  if (p.kv_dtype) return refuse(why_no_fp8(p));
  if (p.dim_qk > 256 || p.dim_v > 256)
    return refuse(text("head dims up to 256 fit its registers; they are ", p.dim_qk, "/", p.dim_v));
  for (const Role role : {Role::q, Role::k, Role::v, Role::out}) {
    if (role == Role::out && p.out_dtype == DType::f32) continue;
    if (std::string sentence = why_no_tma(p, role); !sentence.empty()) return refuse(std::move(sentence));
  }
  const std::int64_t tiles = p.batch * p.heads_q * ((p.seq_q + 127) / 128 + 1);
  if (std::string sentence = why_too_many(p, tiles); !sentence.empty()) return refuse(std::move(sentence));

  if (p.dtype == DType::f8e4m3) return select_fp8_config(p, c, why);
  const bool staged = stages_bias(p);
  const ForwardFeatures features = cuda::features_of(p);
  const AttentionFeatures& f = features.attention;
  const Work work = work_of(f, staged);
  const auto fits = [&](const TileConfig& t) {
    return f.dim_qk <= t.dim_qk && f.dim_v <= t.dim_v && p.seq_q <= t.queries && reach_of(p) <= t.reach &&
           (f.bounded_right || !t.bounded) && work <= t.work && (crowding_of(features) & t.without) == 0 &&
           (!f.bool_mask || t.block_n % 32 == 0);  // the mask's words
  };
  const TileConfig& t = *std::ranges::find_if(kConfigs, fits);  // the last row takes all up to 256
  const int page_rows = p.paged() ? static_cast<int>(std::gcd(p.page_size, std::int64_t{t.block_n})) : 0;
  if (p.paged() && page_rows < 8)
    return refuse(text("it loads 8 keys of a page at once; pages of ", p.page_size, " hold no multiple of that"));
  const bool column_groups = f.dim_v <= t.column_groups, heavy = work == Work::any || f.own_lengths();
  const Registers registers = heavy ? t.heavy : t.registers;
  c = {.groups = t.groups,
       .block_n = t.block_n,
       .stages = t.stages,
       .q_stages = t.q_stages,
       .cross_tile = t.cross_tile,
       .ping_pong = t.ping_pong,
       .q_registers = t.q_registers,
       .column_groups = column_groups,
       .early_softmax = t.early_softmax && !column_groups,
       .bias_stages = staged && t.block_n * bytes_of(f.bias) % kBlockColumnBytes == 0 ? 1 : 0,  // whole boxes
       .page_rows = page_rows,
       .raw_stages = 0,
       .promote = 0,
       .block_scales = false,
       .v_parts = 1,
       .producer_registers = registers.producer,
       .consumer_registers = registers.consumer};
  return true;
}

namespace {

// The bindings name every field: one that is added and not printed does not compile.
std::string config_source(const ForwardConfig& c) {
  const auto& [groups, block_n, stages, q_stages, cross_tile, ping_pong, q_registers, column_groups, early_softmax,
               bias_stages, page_rows, raw_stages, promote, block_scales, v_parts, producer_registers,
               consumer_registers] = c;
  return cuda::Initializer()
      .field("groups", groups)
      .field("block_n", block_n)
      .field("stages", stages)
      .field("q_stages", q_stages)
      .field("cross_tile", cross_tile)
      .field("ping_pong", ping_pong)
      .field("q_registers", q_registers)
      .field("column_groups", column_groups)
      .field("early_softmax", early_softmax)
      .field("bias_stages", bias_stages)
      .field("page_rows", page_rows)
      .field("raw_stages", raw_stages)
      .field("promote", promote)
      .field("block_scales", block_scales)
      .field("v_parts", v_parts)
      .field("producer_registers", producer_registers)
      .field("consumer_registers", consumer_registers)
      .source();
}

}  // namespace

cuda::KernelProgram program_of(const ForwardFeatures& f, const ForwardConfig& c, const std::string& mods) {
  return {"cuda/sm90/forward.cuh",
          "attention_forward",
          text(cuda::features_source(f), "#include \"cuda/sm90/forward_config.hpp\"\n",
               "namespace onepass::sm90 { constexpr ForwardConfig config = ", config_source(c), "; }"),
          "sm_90a",
          mods,
          cuda::wgmma_source({c.block_n, padded(f.attention.dim_v, 16)}, operand_of(f.attention.input))};
}

const Implementation& forward_implementation() {
  static const Implementation row{"cuda.sm90", plan};
  return row;
}

}  // namespace onepass::sm90
