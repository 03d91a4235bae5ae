#include "cuda/attention/backward_host.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "cuda/attention/mask_host.hpp"

namespace onepass::cuda {
namespace {

constexpr int kPreThreads = 256;

// The bindings name every field: one that is added and not printed does not compile.
std::string features_text(const BackwardFeatures& f) {
  const auto& [forward, gradients, dlse, dq, dk, dv, dbias, dsinks, dslopes, deterministic] = f;
  return Initializer()
      .field("forward", initializer_of(forward))
      .field("gradients", gradients)
      .field("dlse", dlse)
      .field("dq", dq)
      .field("dk", dk)
      .field("dv", dv)
      .field("dbias", dbias)
      .field("dsinks", dsinks)
      .field("dslopes", dslopes)
      .field("deterministic", deterministic)
      .source();
}
std::string shape_text(const BackwardShape& s) {
  const auto& [block_q, block_k, sum_columns, zero_sums, read_bytes, write_bytes] = s;
  return Initializer()
      .field("block_q", block_q)
      .field("block_k", block_k)
      .field("sum_columns", sum_columns)
      .field("zero_sums", zero_sums)
      .field("read_bytes", read_bytes)
      .field("write_bytes", write_bytes)
      .source();
}

}  // namespace

std::string backward_source(const BackwardFeatures& f, const BackwardShape& s) {
  return text("#include \"cuda/attention/backward.hpp\"\nnamespace onepass {\n",
              "constexpr BackwardFeatures backward_features = ", features_text(f),
              ";\nconstexpr BackwardShape backward_shape = ", shape_text(s),
              ";\nconstexpr ForwardFeatures forward_features = backward_features.forward;\n",
              "constexpr AttentionFeatures features = forward_features.attention;\n}\n");
}

BackwardPrograms backward_programs(const BackwardFeatures& f, const BackwardShape& s, const std::string& sum_place,
                                   const std::string& arch, const std::string& mods) {
  const std::string config = backward_source(f, s);
  return {{"cuda/attention/backward_pre.cuh", "attention_backward_pre", config, arch, mods},
          {"cuda/attention/backward_post.cuh", "attention_backward_post",
           text(config, "#include \"", sum_place, "\"\n"), arch, mods},
          {"cuda/attention/backward_sums.cuh", "attention_backward_sums", config, arch}};
}

int pre_shared_bytes() { return 4 * kPreThreads; }
int post_shared_bytes(const BackwardShape& s) { return 4 * s.block_q * (s.sum_columns + 4) + 4 * s.block_q; }

BackwardWorkspace workspace_of(const Problem& p, const BackwardFeatures& f, const BackwardShape& s, int key_warps) {
  const auto heads = static_cast<std::size_t>(p.heads_q);
  const auto q_blocks = static_cast<std::size_t>(padded_blocks(p.varlen, p.batch, p.seq_q, p.total_q, s.block_q));
  const auto k_blocks = static_cast<std::size_t>(padded_blocks(p.varlen, p.batch, p.seq_k, p.total_k, s.block_k));
  BackwardWorkspace w{};
  const auto place = [&](std::size_t& at, std::size_t bytes) {
    at = w.total;
    w.total += (bytes + 127) / 128 * 128;
  };
  const auto rows = static_cast<std::size_t>(s.block_q);
  place(w.statistics, heads * q_blocks * rows * 8);
  place(w.dq_sums, f.dq ? heads * q_blocks * rows * static_cast<std::size_t>(s.sum_columns) * 4 : 0);
  place(w.sink_parts, f.dsinks ? heads * q_blocks * 4 : 0);
  place(w.slope_parts, f.dslopes ? heads * k_blocks * 4 : 0);
  place(w.turns, f.deterministic ? heads * q_blocks * 4 : 0);
  place(w.fallback, static_cast<std::size_t>(p.heads_kv) * k_blocks * static_cast<std::size_t>(key_warps) *
                        sizeof(FallbackEntry));
  place(w.mask, mask_bytes(p, kMaskTile));
  return w;
}

BackwardParams decided_backward(const Problem& p, const BackwardFeatures& f, const BackwardShape& s, int l2_bytes) {
  BackwardParams b{};
  static_cast<ForwardParams&>(b) = decided_params(p, {s.block_q, s.block_k, 1}, l2_bytes);
  b.q_blocks = static_cast<int>(padded_blocks(p.varlen, p.batch, p.seq_q, p.total_q, s.block_q));
  b.k_blocks = static_cast<int>(padded_blocks(p.varlen, p.batch, p.seq_k, p.total_k, s.block_k));
  b.slope_batch = 1;
  static_cast<void>(f);
  return b;
}

}  // namespace onepass::cuda
