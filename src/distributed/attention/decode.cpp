// Decoding from a sharded cache: each rank attends to its keys, and the states of its heads come to it and are merged.
#include <array>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "distributed/attention/agree.hpp"
#include "distributed/attention/exchange.hpp"
#include "onepass/context_parallel_attention.hpp"
#include "onepass/merge.hpp"

namespace onepass::inline v0 {
namespace {

using namespace context_parallel;

constexpr const char* kNewest = "onepass_newest";
constexpr const char* kUsed = "onepass_used";

// ------------------------------------------------------------------------------------------------------------- checks
void refuse_unsupported(const AttentionTensors& t, const Attention& a) {
  for (const auto& [name, given] : {std::pair{"bias", t.bias.given()},
                                    {"bool_mask", t.bool_mask.given()},
                                    {"block_mask", t.block_mask.given()},
                                    {"alibi_slopes", t.alibi_slopes.given()},
                                    {"q_descale", t.q_descale.given()},
                                    {"v_mean", t.v_mean.given()},
                                    {"recomputed", t.recomputed.given()},
                                    {"entropy", t.entropy.given()},
                                    {"cu_seqlens_q", t.cu_seqlens_q.given()},
                                    {"cu_seqlens_k", t.cu_seqlens_k.given()},
                                    {"tree", t.tree.given()},
                                    {"mod_buffers", !t.mod_buffers.empty()},
                                    {"score_mod", !a.score_mod.empty()},
                                    {"mask_mod", !a.mask_mod.empty()},
                                    {"a band", a.band != Band{}},
                                    {"dropout", a.dropout_p != 0},
                                    {"dropout_seed", t.dropout_seed.given()},
                                    {"unified_max", a.unified_max.has_value()}})
    want(!given, ErrorCode::unsupported, "context_parallel_decode does not support ", name);
}

void check_newest(const AttentionTensors& t, const ConstTensor& newest) {
  if (!newest.given()) {
    want(t.q.shape[2] < 2, ErrorCode::bad_shape, "newest must be given where q has ", t.q.shape[2], " rows");
    return;
  }
  want(newest.dtype == DType::i32 && newest.rank == 1 && newest.shape[0] == t.q.shape[0], ErrorCode::bad_shape,
       "newest must be int32 of shape [", t.q.shape[0], "] (got ", name_of(newest.dtype), " of shape ",
       shape_text(newest), ")");
  want(newest.device == t.q.device, ErrorCode::bad_value, "newest must be where q is");
}

void check_result(const char* name, const Tensor& x, const std::vector<Index>& shape) {
  bool fits = x.rank == static_cast<int>(shape.size());
  for (std::size_t i = 0; fits && i < shape.size(); ++i) fits = x.shape[i] == shape[i];
  if (fits) return;
  std::string wanted;
  for (const Index n : shape) wanted += text(wanted.empty() ? "" : ", ", n);
  throw Error(ErrorCode::bad_shape, text(name, " must have shape [", wanted, "] (got ", shape_text(x), ")"));
}

// This rank's call, which writes fp32 states. Rank 0 has the sinks, so that they join once.
struct LocalCall {
  AttentionTensors tensors;
  Attention options;

  LocalCall(const AttentionTensors& t, const ConstTensor& newest, const Attention& a, int rank)
      : tensors(t), options(a) {
    if (rank != 0) tensors.sinks = {};
    if (t.q.shape[2] < 2) return;
    // Keys of this cache are all old, but for the last ones of a sequence whose new tokens are here.
    options.mask_mod =
        text(kNewest, "(batch) != ", rank, " || k_index - q_index <= ", kUsed, "(batch) - ", t.q.shape[2]);
    tensors.mod_buffers = {{kNewest, newest}, {kUsed, t.seqused_k}};
  }
  void run(const Tensor& out, const Tensor& lse, const Tensor& row_max, const Launch& launch) {
    tensors.out = out, tensors.lse = lse, tensors.row_max = row_max;
    attention(tensors, options, launch);
  }
  // Throws what run() would throw.
  void try_without_rows() {
    AttentionTensors t = tensors;
    t.q = rows_of(t.q, Range{});
    alignas(64) static std::byte nowhere[64];
    t.out = Tensor(nowhere, DType::f32, {t.q.shape[0], t.q.shape[1], 0, t.v.shape[t.v.rank - 1]}, t.q.device);
    t.lse = t.row_max = {};
    static_cast<void>(make_plan(t, options));
  }
};

void check(const Transport& transport, const AttentionTensors& t, const ConstTensor& newest, const Attention& a) {
  refuse_unsupported(t, a);
  want(t.q.given() && t.q.rank == 4, ErrorCode::bad_shape, "q must have shape [batch, heads, rows, dim] (got ",
       shape_text(t.q), ")");
  const Range heads = decoded_heads(t.q.shape[1], transport.ranks(), transport.rank());
  for (const auto& [name, given] : {std::pair{"k", t.k.given()},
                                    {"v", t.v.given()},
                                    {"out", t.out.given() || heads.empty()},
                                    {"seqused_k", t.seqused_k.given()}})
    want(given, ErrorCode::bad_shape, name, " must be given");
  check_newest(t, newest);
  if (t.out.given())
    check_result("out", t.out,
                 {t.q.shape[0], heads.size(), t.q.shape[2], t.v.shape[static_cast<std::size_t>(t.v.rank - 1)]});
  for (const auto& [name, x] : {std::pair{"lse", &t.lse}, {"row_max", &t.row_max}}) {
    if (!x->given()) continue;
    check_result(name, *x, {t.q.shape[0], heads.size(), t.q.shape[2]});
    want(x->dtype == DType::f32, ErrorCode::bad_dtype, name, " must be fp32 (got ", name_of(x->dtype), ")");
  }
  if (t.row_max.given()) {  // merge() checks the others
    want(t.row_max.device == t.q.device, ErrorCode::bad_device, "row_max must be where q is");
    plan::check_maxima_apart(t.row_max, t.out, t.lse);
  }
  want(!t.out.given() || t.out.dtype == t.q.dtype || t.out.dtype == DType::f32, ErrorCode::bad_dtype, "out must be ",
       name_of(t.q.dtype), " or fp32 (got ", name_of(t.out.dtype), ")");
  LocalCall(t, newest, a, transport.rank()).try_without_rows();
}

// Facts that must be the same on all ranks.
std::vector<Fact> facts_of(const AttentionTensors& t, const ConstTensor& newest, const Attention& a) {
  const Index heads_kv = t.k.shape[t.page_table.given() ? 2 : 1];
  const auto is = [](bool given) { return given ? "given" : "none"; };
  return {
      {"q",
       text(shape_text(t.q), " of ", name_of(t.q.dtype), t.q.device.kind == DeviceKind::cpu ? " on cpu" : " on cuda")},
      {"heads, dims and dtypes of the cache", text(heads_kv, " heads, ", t.k.shape[3], " and ", t.v.shape[3], ", ",
                                                   name_of(t.k.dtype), " and ", name_of(t.v.dtype))},
      {"newest, sinks and row_max",
       text(is(newest.given()), ", ", is(t.sinks.given()), " and ", is(t.row_max.given()))},
      {"options", text("scale ", a.scale ? text(*a.scale) : "default", ", softcap ", a.softcap)},
  };
}

// ------------------------------------------------------------------------------------------------------------ results
void decode(Transport& transport, const AttentionTensors& t, const ConstTensor& newest, const Attention& a,
            const Launch& launch) {
  const Index batch = t.q.shape[0], heads = t.q.shape[1], rows = t.q.shape[2], dim = t.v.shape[3];
  const auto of = [&](int rank) { return decoded_heads(heads, transport.ranks(), rank); };
  const Owned out(DType::f32, {batch, heads, rows, dim}, t.q.device, launch);
  const Owned lse(DType::f32, {batch, heads, rows}, t.q.device, launch);
  std::optional<Owned> row_max;
  if (t.row_max.given())
    row_max.emplace(DType::f32, std::initializer_list<Index>{batch, heads, rows}, t.q.device, launch);
  LocalCall(t, newest, a, transport.rank())
      .run(out.tensor(), lse.tensor(), row_max ? row_max->tensor() : Tensor{}, launch);

  const Index mine = of(transport.rank()).size();
  std::vector<std::vector<ConstTensor>> going(static_cast<std::size_t>(transport.ranks()));
  std::vector<std::vector<Coming>> coming(going.size());
  std::vector<ConstTensor> state{out.tensor(), as_column(lse.tensor())};
  if (row_max) state.emplace_back(as_column(row_max->tensor()));
  for (int r = 0; r < transport.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    for (const ConstTensor& x : state) {
      going[at].push_back(slice(x, 1, of(r)));
      coming[at].push_back({DType::f32, {batch, mine, rows, x.shape[3]}});
    }
  }
  const Arrived arrived = exchange(transport, going, coming, t.q.device, launch);
  if (mine == 0) return;
  std::vector<ConstTensor> outs, lses;
  for (int r = 0; r < transport.ranks(); ++r) {
    const auto& of_rank = r == transport.rank() ? going[static_cast<std::size_t>(r)] : arrived.from(r);
    outs.push_back(of_rank[0]), lses.push_back(without_column(of_rank[1]));
    if (!row_max) continue;
    const Tensor into = as_column(t.row_max);
    r == 0 ? copy(of_rank[2], into, launch) : take_larger(of_rank[2], into, launch);
  }
  onepass::merge(outs, lses, t.out, t.lse, launch);  // unqualified, vectors would find std::merge
}

}  // namespace

Range decoded_heads(std::int64_t heads_q, std::int64_t ranks, std::int64_t rank) {
  return {heads_q * rank / ranks, heads_q * (rank + 1) / ranks};
}

void context_parallel_decode(Transport& transport, const AttentionTensors& tensors, const ConstTensor& newest,
                             const Attention& attention, const Launch& launch) {
  std::optional<Error> complaint;
  try {
    check(transport, tensors, newest, attention);
  } catch (const Error& error) {
    complaint = error;
  }
  agree(transport, complaint, complaint ? std::vector<Fact>{} : facts_of(tensors, newest, attention),
        tensors.q.device.kind == DeviceKind::cuda);
  try {
    decode(transport, tensors, newest, attention, {.stream = launch.stream, .executor = launch.executor});
  } catch (const std::exception& error) {  // the other ranks wait for this one
    transport.fail(error.what());
    throw;
  }
}

}  // namespace onepass::inline v0
