#include "cuda/decode/mla.hpp"

#include <atomic>
#include <numeric>
#include <tuple>

#include "core/arguments.hpp"
#include "core/split.hpp"
#include "core/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/initializer.hpp"
#include "cuda/host/kernels.hpp"
#include "cuda/host/wgmma_source.hpp"
#include "cuda/sm90/host.hpp"

namespace onepass::decode {
namespace {

constexpr int kMinTiles = 4;  // of a block: fewer are not worth a merge

class State final : public PlanState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const MlaConfig& config)
      : PlanState(request.problem),
        device_(device),
        features_(cuda::features_of(*problem)),
        config_(config),
        sharing_(sharing_of(*problem, config)),
        share_(share_of(*problem, sharing_, device.multiprocessors)),
        decided_(decided_params(*problem, config, share_)) {
    workspace_bytes = idle() ? 0 : workspace_bytes_of(*problem, sharing_, share_.blocks);
  }

  std::string describe() const override {
    return text("v read out of k, ", rows_of(*problem), " rows per K/V head in blocks of ", kMlaRows, ", tiles of ",
                kMlaKeys, " keys, ", sentence_of(share_, sharing_), ", ", mla_layout().total,
                " bytes of shared memory");
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
    params.counters = counters_of(device_, workspace, stream);
    cuda::TensorMap map = mla_map(*problem, tensors, config_, cuda::tensor_map);
    void* arguments[] = {&map, &params};
    cuda::launch(loaded, static_cast<unsigned>(share_.blocks), kMlaThreads, mla_layout().total, stream, arguments);
  }

 private:
  bool idle() const { return groups_of(*problem, sharing_) == 0 || problem->seq_q == 0; }
  const cuda::Kernel& kernel(cuda::Stream stream) const {
    const cuda::Kernel* known = kernel_.load(std::memory_order_acquire);
    if (!known) kernel_.store(known = &load(stream), std::memory_order_release);
    return *known;
  }
  const cuda::Kernel& load(cuda::Stream stream) const {
    static cuda::KernelTable<std::tuple<ForwardFeatures, MlaConfig>> kernels;
    return kernels.find(device_.ordinal, {features_, config_}, mla_layout().total, stream,
                        [&] { return mla_program(features_, config_); });
  }

  const cuda::DeviceFacts& device_;
  const ForwardFeatures features_;
  const MlaConfig config_;
  const Sharing sharing_;
  const Share share_;
  const DecodeParams decided_;
  mutable std::atomic<const cuda::Kernel*> kernel_{nullptr};  // once it is loaded
};

Decision plan(const Request& request) {
  MlaConfig config;
  std::string why;
  const cuda::DeviceFacts* const device = cuda::device_of(*request.problem, why);
  if (!device) return Decision::no(std::move(why));
  if (device->major != 9)
    return Decision::no(
        text("it is written for compute capability 9.0; ", device->name, " has ", device->major, ".", device->minor));
  if (!select_mla(*request.problem, config, why)) return Decision::no(std::move(why));
  return {{}, std::make_shared<State>(request, *device, config)};
}

// What a problem asks for that the kernel has no registers for.
const char* unwanted_of(const Problem& p) {
  if (p.varlen) return "packed sequences";
  if (p.bias) return "a bias";
  if (p.bool_mask) return "a boolean mask";
  if (p.alibi) return "ALiBi slopes";
  if (!p.score_mod.empty()) return "a score_mod";
  if (!p.mask_mod.empty()) return "a mask_mod";
  if (p.dropout_p > 0) return "dropout";
  return nullptr;
}

}  // namespace

bool select_mla(const Problem& p, MlaConfig& c, std::string& why) {
  const auto refuse = [&](std::string sentence) {
    why = std::move(sentence);
    return false;
  };
  if (p.dim_qk != kMlaQk || p.dim_v != kMlaV)
    return refuse(text("it is for head dims ", kMlaQk, "/", kMlaV, "; they are ", p.dim_qk, "/", p.dim_v));
  if (p.dtype == DType::f32) return refuse("it computes fp16 and bf16; q is fp32");
  if (std::string sentence = why_no_fp8(p); !sentence.empty()) return refuse(std::move(sentence));
  if (std::string sentence = why_no_fp8(p); !sentence.empty()) return refuse(std::move(sentence));
  if (!p.v_in_k) return refuse("it reads v out of k; v has a memory or strides of its own");
  if (const char* unwanted = unwanted_of(p)) return refuse(text("it computes no ", unwanted));
  if (std::string sentence = sm90::why_no_tma(p, Role::k); !sentence.empty()) return refuse(std::move(sentence));
  if (std::string sentence = sm90::why_no_vectors(p, Role::q, 16); !sentence.empty())
    return refuse(std::move(sentence));
  if (p.out_dtype != DType::f32) {
    if (std::string sentence = sm90::why_no_vectors(p, Role::out, 16); !sentence.empty())
      return refuse(std::move(sentence));
  }
  const int page_rows = p.paged() ? static_cast<int>(std::gcd(p.page_size, std::int64_t{kMlaKeys})) : 0;
  c = {.piece = p.batch_invariant ? static_cast<int>(fixed_splits(p.seq_k, kMlaKeys).chunk) / kMlaKeys : 0,
       .page_rows = page_rows,
       .producer_registers = 48,
       .consumer_registers = 232};
  const Sharing sharing = sharing_of(p, c);
  const std::int64_t tiles = std::max<std::int64_t>(1, tiles_of(p, kMlaKeys));
  if (groups_of(p, sharing) > cuda::kMaxPosition / tiles)
    return refuse(text("it counts in 32 bits; ", groups_of(p, sharing), " blocks of rows have too many tiles of ",
                       kMlaKeys, " keys"));
  if (std::string sentence = sm90::why_too_many(p, groups_of(p, sharing)); !sentence.empty())
    return refuse(std::move(sentence));
  return true;
}

Sharing sharing_of(const Problem& p, const MlaConfig& c) {
  return {.rows = kMlaRows,
          .block_n = kMlaKeys,
          .piece = c.piece,
          .min_tiles = kMinTiles,
          .row_blocks = static_cast<int>(std::max<std::int64_t>(1, (rows_of(p) + kMlaRows - 1) / kMlaRows))};
}
DecodeParams decided_params(const Problem& p, const MlaConfig& c, const Share& share) {
  return decided_params(p, sharing_of(p, c), {kMlaRows, kMlaKeys, kMlaRows / 16}, share);
}

cuda::TensorMap mla_map(const Problem& p, const Tensors& t, const MlaConfig& c, MapTensor map_tensor) {
  const std::int64_t tokens = p.paged() ? p.page_size : p.seq_k, batch = p.paged() ? p.pages : p.batch;
  const bool any = tokens > 0 && batch > 0;
  return map_tensor(any ? t.k.data : t.q.data, p.dtype, {p.dim_qk, tokens, p.heads_kv, batch},
                    {p.layout.k[2], p.layout.k[1], p.layout.k[0]}, c.key_rows());
}

namespace {

// The bindings name every field: one that is added and not printed does not compile.
std::string config_source(const MlaConfig& c) {
  const auto& [piece, page_rows, producer_registers, consumer_registers] = c;
  return cuda::Initializer()
      .field("piece", piece)
      .field("page_rows", page_rows)
      .field("producer_registers", producer_registers)
      .field("consumer_registers", consumer_registers)
      .source();
}

}  // namespace

cuda::KernelProgram mla_program(const ForwardFeatures& f, const MlaConfig& c) {
  return {"cuda/decode/mla.cuh",
          "attention_mla",
          text(cuda::features_source(f), "#include \"cuda/decode/mla_config.hpp\"\n",
               "namespace onepass::decode { constexpr MlaConfig config = ", config_source(c), "; }\n"),
          "sm_90a",
          {},
          cuda::wgmma_source({kMlaKeys, kMlaV / 2}, sm90::operand_of(f.attention.input))};
}

const Implementation& mla_implementation() {
  static const Implementation row{"cuda.mla", plan};
  return row;
}

}  // namespace onepass::decode
