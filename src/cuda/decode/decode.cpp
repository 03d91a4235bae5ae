#include "cuda/decode/decode.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <span>
#include <tuple>

#include "core/arguments.hpp"
#include "core/split.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/mods.hpp"
#include "cuda/host/initializer.hpp"
#include "cuda/sm80/host.hpp"

namespace onepass::decode {
namespace {

// The first row that computes the head dims is taken. A tile of keys is 4 to 16 KB of K or V; a warp holds at most
// row_tiles times sixteen rows of O, and where there are more the warps of a team share them.
struct TileConfig {
  int dim_qk, dim_v;  // up to these head dims
  int row_tiles, block_n, warps;
};
constexpr TileConfig kConfigs16[] = {{64, 64, 2, 32, 8}, {128, 128, 2, 16, 8}, {256, 256, 1, 16, 8}};
constexpr TileConfig kConfigs32[] = {{64, 64, 1, 16, 8}, {128, 128, 1, 16, 8}, {256, 256, 1, 16, 4}};
constexpr int kMostSlots = 8, kLeastSlots = 2;
constexpr std::int64_t kKeysOfRow = 4;  // at least, if there is more than one query: else Q and O are no small part
constexpr double kBusy = 0.9;           // of the multiprocessors, if every K/V head is cut into as many parts
// Of a block: fewer tiles are not worth a merge.
int min_tiles(const DecodeConfig& c) { return 2 * c.share; }

std::int64_t rows_of(const Problem& p) { return p.seq_q * p.group(); }
std::int64_t groups_of(const Problem& p) { return p.batch * p.heads_kv; }

bool lengths_vary(const Problem& p) { return p.varlen || p.seqused; }
// Tiles of keys of one group, at most.
std::int64_t tiles_of(const Problem& p, int block_n) {
  const Range keys = lengths_vary(p) ? Range{0, p.seq_k} : band_mask(p, p.seq_q, p.seq_k).key_range(0, p.seq_q);
  return (keys.hi + block_n - 1) / block_n - keys.lo / block_n;
}
// Partial results at most: pieces have one each, else every block has two.
std::int64_t slots_of(const Problem& p, const DecodeConfig& c, int blocks) {
  return c.piece == 0 ? 2 * blocks
                      : groups_of(p) * std::max<std::int64_t>(1, (tiles_of(p, c.block_n) + c.piece - 1) / c.piece);
}
class State final : public PlanState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const DecodeConfig& config)
      : PlanState(request.problem),
        device_(device),
        features_(cuda::features_of(*problem)),
        config_(config),
        shared_bytes_(layout_of(features_, config).total),
        share_(share_of(*problem, config, device.multiprocessors)),
        decided_(decided_params(*problem, config, share_)) {
    workspace_bytes = idle() ? 0 : workspace_bytes_of(*problem, config, share_.blocks);
  }

  std::string describe() const override {
    const DecodeConfig& c = config_;
    return text(rows_of(*problem), " rows per K/V head, ", c.warps, " warps in ", c.share, " teams, tiles of ",
                c.block_n, " keys, ", c.slots, " tiles ahead a team, ", sharing(), ", ", c.copy_bytes, "-byte copies, ",
                shared_bytes_, " bytes of shared memory");
  }

  void prepare() const override {
    if (!idle()) kernel(nullptr);
  }

  void run(const Tensors& tensors, void* workspace, Executor&, void* stream_) const override {
    if (idle()) return;
    const auto stream = static_cast<cuda::Stream>(stream_);
    const cuda::Kernel& loaded = kernel(stream);
    const cuda::ContextScope scope(device_);
    DecodeParams params = decided_;
    bind(params, tensors, workspace);
    params.counters = cuda::workspace_counters(device_, workspace);
    if (!params.counters) {
      params.counters = static_cast<unsigned*>(workspace);
      cuda::check_cuda(cuda::driver()->memset8(reinterpret_cast<cuda::DevicePtr>(workspace), 0, kCounterBytes, stream),
                       "cuMemsetD8Async");
    }
    void* arguments[] = {&params};
    cuda::launch(loaded, static_cast<unsigned>(share_.blocks), static_cast<unsigned>(config_.threads()), shared_bytes_,
                 stream, arguments);
  }

 private:
  bool idle() const { return groups_of(*problem) == 0 || problem->seq_q == 0; }

  std::string sharing() const {
    if (config_.piece != 0) return text(share_.blocks, " blocks, pieces of ", config_.piece * config_.block_n, " keys");
    if (share_.splits != 0) return text(share_.blocks, " blocks, ", share_.splits, " for each K/V head");
    return text("work in ", share_.blocks, " equal parts");
  }

  const cuda::Kernel& kernel(cuda::Stream stream) const {
    const cuda::Kernel* known = kernel_.load(std::memory_order_acquire);
    if (!known) kernel_.store(known = &load(stream), std::memory_order_release);
    return *known;
  }
  const cuda::Kernel& load(cuda::Stream stream) const {
    static cuda::KernelTable<std::tuple<ForwardFeatures, DecodeConfig, std::string>> kernels;
    return kernels.find(device_.ordinal, {features_, config_, cuda::mods_key(*problem)}, shared_bytes_, stream, [&] {
      return program_of(features_, config_, cuda::arch_of(device_), cuda::mods_source(*problem));
    });
  }

  const cuda::DeviceFacts& device_;
  const ForwardFeatures features_;
  const DecodeConfig config_;
  const int shared_bytes_;
  const Share share_;
  const DecodeParams decided_;
  mutable std::atomic<const cuda::Kernel*> kernel_{nullptr};  // once it is loaded
};

Decision plan(const Request& request) {
  DecodeConfig config;
  std::string why;
  const cuda::DeviceFacts* const device = cuda::device_of(*request.problem, why);
  if (!device) return Decision::no(std::move(why));
  if (device->major < 8) return Decision::no(sm80::why_too_old(*device));
  if (!select_config(*request.problem, device->shared_bytes, config, why)) return Decision::no(std::move(why));
  return {{}, std::make_shared<State>(request, *device, config)};
}

}  // namespace

bool select_config(const Problem& p, int shared_bytes, DecodeConfig& c, std::string& why) {
  const auto refuse = [&](std::string sentence) {
    why = std::move(sentence);
    return false;
  };
  if (p.dim_qk > 256 || p.dim_v > 256)
    return refuse(text("head dims up to 256 fit its registers; they are ", p.dim_qk, "/", p.dim_v));
  if (rows_of(p) > kMaxRows) {
    return refuse(
        text("seq_q x heads_q / heads_kv is ", rows_of(p), " rows per K/V head; it is for at most ", kMaxRows));
  }
  if (p.seq_q > 1 && p.seq_k < kKeysOfRow * rows_of(p)) {
    return refuse(text("seq_k is ", p.seq_k, " for ", rows_of(p), " rows per K/V head; it is for at least ", kKeysOfRow,
                       " keys a row"));
  }
  if (std::string sentence = sm80::why_too_many(p); !sentence.empty()) return refuse(std::move(sentence));
  const ForwardFeatures features = cuda::features_of(p);
  const std::span<const TileConfig> table =
      p.dtype == DType::f32 ? std::span<const TileConfig>(kConfigs32) : kConfigs16;
  const auto s =
      std::ranges::find_if(table, [&](const TileConfig& t) { return p.dim_qk <= t.dim_qk && p.dim_v <= t.dim_v; });
  const int rows = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, rows_of(p)))));
  const int row_tiles = std::max(1, rows / 16), held = std::min(row_tiles, s->row_tiles);
  c = {.kSums = p.dtype == DType::f32 && p.dim_v > 128 ? 2 : 1,
       .rows = rows,
       .warps = s->warps,
       .row_tiles = held,
       .share = 0,
       .block_n = s->block_n,
       .slots = 0,
       .piece = p.batch_invariant ? static_cast<int>(fixed_splits(p.seq_k, s->block_n).chunk) / s->block_n : 0,
       .copy_bytes =
           std::min({sm80::alignment_of(p, Role::q), sm80::alignment_of(p, Role::k), sm80::alignment_of(p, Role::v)})};
  // As many tiles ahead as shared memory holds, and fewer warps where two are too many.
  const auto fits = [&] { return layout_of(features, c).total <= shared_bytes; };
  for (; c.warps >= row_tiles / held; c.warps /= 2) {
    c.share = c.warps / (row_tiles / held);
    for (c.slots = kMostSlots; c.slots > kLeastSlots && !fits(); --c.slots) {
    }
    if (fits()) break;
  }
  if (!fits())
    return refuse(text("two tiles of K and V a warp at head dims ", p.dim_qk, "/", p.dim_v, " do not fit ",
                       shared_bytes, " bytes of shared memory"));
  if (groups_of(p) > cuda::kMaxPosition / std::max<std::int64_t>(1, tiles_of(p, c.block_n)))
    return refuse(
        text("it counts in 32 bits; ", groups_of(p), " K/V heads have too many tiles of ", c.block_n, " keys"));
  return true;
}

Share share_of(const Problem& p, const DecodeConfig& c, int multiprocessors) {
  const std::int64_t most = std::min(multiprocessors, kMostBlocks), groups = std::max<std::int64_t>(1, groups_of(p)),
                     tiles = std::max<std::int64_t>(1, tiles_of(p, c.block_n));
  if (c.piece == 0 && !lengths_vary(p)) {
    // Whole groups, or an equal number of parts of each: no block then works on two groups by half.
    const std::int64_t splits =
        std::clamp<std::int64_t>(tiles / min_tiles(c), 1, std::max<std::int64_t>(1, most / groups));
    if (groups <= most && (groups * splits >= kBusy * most || splits < most / groups))
      return {static_cast<int>(groups * splits), static_cast<int>(splits)};
  }
  const std::int64_t steps = c.piece == 0 ? tiles : (tiles + c.piece - 1) / c.piece;
  return {static_cast<int>(std::min<std::int64_t>(groups * steps, most)), 0};
}

DecodeParams decided_params(const Problem& p, const DecodeConfig& c, const Share& share) {
  DecodeParams d{};
  static_cast<ForwardParams&>(d) = cuda::decided_params(p, {c.block_m(), c.block_n, c.warps}, 0);
  std::copy(p.layout.bool_mask.begin(), p.layout.bool_mask.end(), d.mask_stride);
  d.heads_kv = static_cast<int>(p.heads_kv);
  d.by_rows_of_head = Divisor::of(std::max(1, d.heads_per_kv));
  d.by_heads = Divisor::of(std::max(1, d.heads_kv));
  d.splits = share.splits;
  const auto tiles = static_cast<int>(std::max<std::int64_t>(1, tiles_of(p, c.block_n)));
  d.steps = c.piece == 0 ? tiles : (tiles + c.piece - 1) / c.piece;
  d.by_steps = Divisor::of(d.steps);
  d.by_splits = Divisor::of(std::max(1, d.splits));
  if (d.splits != 0) d.each = d.steps / d.splits, d.rest = d.steps % d.splits;
  d.min_tiles = min_tiles(c);
  return d;
}

std::size_t workspace_bytes_of(const Problem& p, const DecodeConfig& c, int blocks) {
  const auto floats = static_cast<std::size_t>(partial_floats(c, static_cast<int>(p.dim_v)));
  return kCounterBytes + sizeof(float) * floats * static_cast<std::size_t>(slots_of(p, c, blocks));
}

void bind(DecodeParams& d, const Tensors& t, void* workspace) {
  cuda::bind(d, t, workspace);
  d.fallback = nullptr;
  d.mask_bytes = static_cast<const unsigned char*>(t.bool_mask.data);
  d.partials = reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + kCounterBytes);
}

namespace {

// The bindings name every field: one that is added and not printed does not compile.
std::string config_source(const DecodeConfig& c) {
  const auto& [sums, rows, warps, row_tiles, share, block_n, slots, piece, copy_bytes] = c;
  return cuda::Initializer()
      .field("kSums", sums)
      .field("rows", rows)
      .field("warps", warps)
      .field("row_tiles", row_tiles)
      .field("share", share)
      .field("block_n", block_n)
      .field("slots", slots)
      .field("piece", piece)
      .field("copy_bytes", copy_bytes)
      .source();
}

}  // namespace

cuda::KernelProgram program_of(const ForwardFeatures& f, const DecodeConfig& c, const std::string& arch,
                               const std::string& mods) {
  return {"cuda/decode/decode.cuh", "attention_decode",
          text(cuda::features_source(f), "#include \"cuda/decode/decode_config.hpp\"\n",
               "namespace onepass::sm80 { constexpr decode::DecodeConfig config = ", config_source(c), "; }\n",
               sm80::products_of(f.attention.input)),
          arch, mods};
}

const Implementation& implementation() {
  static const Implementation row{"cuda.decode", plan};
  return row;
}

}  // namespace onepass::decode
