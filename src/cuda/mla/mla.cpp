#include "cuda/mla/mla.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "algebra/ceil_div.hpp"
#include "algebra/split.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/compile/wgmma_source.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/sm90/host.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass::decode {
namespace {

constexpr int kMinTiles = 4;  // of a block: fewer are not worth a merge
constexpr int kLeadTiles =
    3;  // of time that beginning with a group takes: Q, the first products alone, O on its way out
constexpr std::int64_t kMergeBlocks = 528, kFewParts = 4;

// Row blocks of a K/V head that walk along its keys at the same time: all of them, or a part that divides them. A key
// is then read from memory once and from L2 by the others, whatever the lengths are. More than 8 would leave too many
// multiprocessors without work.
int co_scheduled_of(int row_blocks) {
  int co_scheduled = std::min(row_blocks, 8);
  while (row_blocks % co_scheduled != 0) --co_scheduled;
  return co_scheduled;
}
class State final : public cuda::KernelState {
 public:
  State(const Request& request, const cuda::DeviceFacts& device, const MlaConfig& config)
      : KernelState(request, device),
        sharing_(sharing_of(*problem, config)),
        share_(share_of(*problem, sharing_, device.multiprocessors)),
        map_(mla_map(*problem, config)),
        merge_grid_(merge_grid(*problem, config)),
        decided_(decided_params(*problem, config, share_)) {
    idle_ = groups_of(*problem, sharing_) == 0 || rows_of(*problem) == 0;
    workspace_bytes = idle_ ? 0 : workspace_bytes_of(*problem, sharing_, share_.blocks);
    const ForwardFeatures features = cuda::features_of(*problem);
    attention_ = kernels_.add(std::pair{features, config}, mla_layout(features.attention.tree).total,
                              [](const auto& v, const std::string&) { return mla_program(v.first, v.second); });
    const auto print_merge = [](const auto& values, const std::string&) {
      const auto& [f, c, many] = values;
      return mla_merge_program(f, c, many);
    };
    const bool merges = share_.splits != 1 && !share_.whole, many = many_parts(*problem, config, share_);
    if (merges) merge_ = kernels_.add(std::tuple{features, config, many}, kMlaMergeBytes, print_merge);
    for (const bool other : {false, true})
      if (!merges || other != many) kernels_.add_elsewhere(std::tuple{features, config, other}, print_merge);
  }

  std::string describe() const override {
    return text("v read from k, ", rows_of(*problem), " rows per K/V head in blocks of ", kMlaRows, ", tiles of ",
                kMlaKeys, " keys, ", sentence_of(share_, sharing_), ", ", mla_layout(problem->drafts > 0).total,
                " bytes of shared memory");
  }

 private:
  void launch(const cuda::Call& call) const override {
    DecodeParams params = decided_;
    bind(params, call.tensors, call.workspace);
    cuda::TensorMap map = map_.at(call.tensors, cuda::tensor_map);
    call.launch(*attention_, {share_.blocks * sharing_.co_scheduled, kMlaThreads}, map, params);
    if (merge_) call.launch(*merge_, {merge_grid_, kMlaMergeThreads, true}, params);
  }

  const Sharing sharing_;
  const Share share_;
  const MlaMap map_;
  const unsigned merge_grid_;
  const DecodeParams decided_;
  const cuda::PlannedKernel *attention_, *merge_ = nullptr;
};

Selected<MlaConfig> config_on(const cuda::DeviceFacts& device, const Problem& p) {
  if (device.major != 9) return refuse(sm90::why_no_hopper(device));
  return select_mla(p);
}

// A requested feature that the kernel has no registers for, or nullptr.
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

Selected<MlaConfig> select_mla(const Problem& p) {
  if (p.dim_qk != kMlaQk || p.dim_v != kMlaV)
    return refuse("head dims must be ", kMlaQk, "/", kMlaV, " (got ", p.dim_qk, "/", p.dim_v, ")");
  if (p.dtype == DType::f32) return refuse("requires fp16 or bf16 (q is fp32)");
  if (std::string sentence = why_no_fp8(p); !sentence.empty()) return refuse(sentence);
  if (!p.v_in_k) return refuse("requires v to be a view of k (the first ", kMlaV, " columns, same strides)");
  if (const char* unwanted = unwanted_of(p)) return refuse("does not support ", unwanted);
  if (std::string sentence = sm90::why_no_tma(p, Role::k); !sentence.empty()) return refuse(sentence);
  if (std::string sentence = sm90::why_no_vectors(p, Role::q, 16); !sentence.empty()) return refuse(sentence);
  if (p.out_dtype != DType::f32) {
    if (std::string sentence = sm90::why_no_vectors(p, Role::out, 16); !sentence.empty()) return refuse(sentence);
  }
  const int page_rows = p.paged() ? static_cast<int>(std::gcd(p.page_size, std::int64_t{kMlaKeys})) : 0;
  MlaConfig c{.piece = p.batch_invariant ? static_cast<int>(fixed_splits(p.seq_k, kMlaKeys).chunk) / kMlaKeys : 0,
              .page_rows = page_rows,
              .producer_registers = 40,
              .consumer_registers = 232};
  if (c.gathers()) c.producer_registers = 56, c.consumer_registers = 224;
  const Sharing sharing = sharing_of(p, c);
  const std::int64_t tiles = std::max<std::int64_t>(1, tiles_of(p, kMlaKeys));
  if (groups_of(p, sharing) > cuda::kMaxPosition / tiles)
    return refuse(groups_of(p, sharing), " blocks of rows have too many tiles of ", kMlaKeys,
                  " keys for 32-bit indices");
  if (std::string sentence = cuda::why_elsewhere(p, groups_of(p, sharing)); !sentence.empty()) return refuse(sentence);
  return c;
}

Sharing sharing_of(const Problem& p, const MlaConfig& c) {
  const int row_blocks = static_cast<int>(std::max<std::int64_t>(1, ceil_div(rows_of(p), kMlaRows)));
  return {.rows = kMlaRows,
          .block_n = kMlaKeys,
          .piece = c.piece,
          .min_tiles = kMinTiles,
          .row_blocks = row_blocks,
          .lead = c.piece == 0 ? kLeadTiles : 0,
          .co_scheduled = co_scheduled_of(row_blocks)};
}
DecodeParams decided_params(const Problem& p, const MlaConfig& c, const Share& share) {
  const Sharing sharing = sharing_of(p, c);
  return decided_params(p, sharing, {kMlaRows, kMlaKeys, kMlaRows / 16}, share);
}
bool many_parts(const Problem& p, const MlaConfig& c, const Share& share) {
  return share.blocks > kFewParts * groups_of(p, sharing_of(p, c));
}
unsigned merge_grid(const Problem& p, const MlaConfig& c) {
  const Sharing s = sharing_of(p, c);
  const std::int64_t groups = groups_of(p, s) * s.co_scheduled;
  return static_cast<unsigned>(groups * std::clamp<std::int64_t>(ceil_div(kMergeBlocks, groups), 1, kMlaRows));
}

MlaMap mla_map(const Problem& p, const MlaConfig& c) {
  const sm90::MapRows keys = sm90::rows_of_keys(p);
  const Dims& stride = p.layout.k;
  return {{p.dtype, {p.dim_qk, keys.tokens, p.heads_kv, keys.batch}, {stride[2], stride[1], stride[0]}, c.key_rows()},
          keys.any()};
}

namespace {

std::string constants(const ForwardFeatures& f, const MlaConfig& c) {
  return text(cuda::features_source(f),
              cuda::config_line("cuda/mla/config.hpp", "onepass::decode", "MlaConfig config", c));
}

}  // namespace

cuda::KernelProgram mla_program(const ForwardFeatures& f, const MlaConfig& c) {
  return {"cuda/mla/mla.cuh",
          "attention_mla",
          constants(f, c),
          "sm_90a",
          {},
          cuda::wgmma_source({kMlaKeys, kMlaV / 2}, sm90::operand_of(f.attention.input))};
}
cuda::KernelProgram mla_merge_program(const ForwardFeatures& f, const MlaConfig& c, bool many) {
  return {"cuda/mla/merge.cuh", many ? "attention_mla_merge_many" : "attention_mla_merge", constants(f, c), "sm_90a"};
}

constinit const Implementation kMlaImplementation{"cuda.mla", cuda::plan_row<State, config_on>};

}  // namespace onepass::decode
