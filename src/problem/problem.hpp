// A Problem is a call without its data: a plain value, checked once, printed and parsed as one line
// (docs/reference/problem.md). Callers have the tensors and options of each operator in a type of their own (include/
// onepass); this is what all of them become, so that one walk over the table of tensors serves every operator. What
// belongs to one operator is in the fields.hpp of its folder.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expression/check_mods.hpp"
#include "onepass/options.hpp"
#include "onepass/tensor.hpp"
#include "problem/append/fields.hpp"
#include "problem/gemm/fields.hpp"
#include "problem/merge/fields.hpp"
#include "problem/op.hpp"
#include "problem/quantize/fields.hpp"
#include "problem/softmax/fields.hpp"

namespace onepass {

// Additive bias or boolean mask over [batch, heads_q, seq_q, seq_k]; a dimension not spanned has size 1 and is
// repeated.
struct BroadcastDims {
  bool batch = false, heads = false, rows = false, keys = false;
  friend bool operator==(const BroadcastDims&, const BroadcastDims&) = default;
};
struct BiasSpec {
  DType dtype = DType::f32;
  BroadcastDims spans;
  friend bool operator==(const BiasSpec&, const BiasSpec&) = default;
};

// The tensors of a call, in the order in which they are checked.
enum class Role : std::uint8_t {
  q,
  k,
  v,
  out,
  cu_seqlens_q,
  cu_seqlens_k,
  seqused_k,
  page_table,
  tree,
  bias,
  bool_mask,
  alibi_slopes,
  sinks,
  q_descale,
  k_descale,
  v_descale,
  v_mean,
  lse,
  dout,
  dlse,
  dq,
  dk,
  dv,
  dbias,
  dsinks,
  dalibi_slopes,
  tq,
  tk,
  tv,
  tbias,
  tsinks,
  tout,
  tlse,
  tdout,
  tdlse,
  tdq,
  tdk,
  tdv,
  tdbias,
  tdsinks,
  tdalibi_slopes,
  x,
  row_lse,
  y,
  dy,
  dx,
  descale,
  mean,
  w,
  column_bias,
  recomputed,
  row_max,
  k_new,
  v_new,
  k_cache,
  v_cache,
  cache_seqlens,
  cos,
  sin,
  q_out,
  slot_mapping,
  positions,
  block_mask,
  dropout_seed,
  entropy,
  dentropy
};
inline constexpr std::size_t kRoles = 66;

// Which gradients a backward writes, or whose derivatives a backward_jvp.
struct Gradients {
  bool dq = false, dk = false, dv = false, dbias = false, dsinks = false, dalibi_slopes = false;
  friend bool operator==(const Gradients&, const Gradients&) = default;
};

// Strides in elements; 0 in dimensions of size 1 and of tensors that are not given.
struct Layout : AppendLayout, GemmLayout, QuantizeLayout, SoftmaxLayout {
  Dims q{}, k{}, v{}, out{};                        // [batch, heads, seq, dim]; packed: batch stride 0; k and v in
                                                    // pages: [page, heads, token of the page, dim]
  Dims lse{};                                       // [batch, heads, seq]; packed: batch stride 0
  Dims bias{}, bool_mask{};                         // [batch, heads, rows, keys]
  Dims block_mask{};                                // [batch, heads, tiles of rows, tiles of keys]
  Dims alibi_slopes{};                              // [batch, heads]
  Dims sinks{};                                     // [heads]
  Dims q_descale{}, k_descale{}, v_descale{};       // [batch, heads, blocks]
  Dims v_mean{};                                    // [batch, heads, dim_v]
  Dims cu_seqlens_q{}, cu_seqlens_k{};              // [batch + 1]
  Dims seqused_k{}, page_table{};                   // [batch], [batch, pages of a sequence]
  Dims tree{};                                      // [batch, drafts]
  Dims dropout_seed{};                              // [1]
  Dims dout{}, dq{}, dk{}, dv{};                    // as out, q, k and v
  Dims dlse{}, dbias{}, dsinks{}, dalibi_slopes{};  // as lse, bias, sinks and alibi_slopes
  Dims recomputed{}, row_max{};                     // as lse
  Dims entropy{}, dentropy{};                       // as lse
  Dims tq{}, tk{}, tv{}, tout{};                    // as q, k, v and out
  Dims tbias{}, tsinks{}, tlse{};                   // as bias, sinks and lse
  Dims tdout{}, tdlse{}, tdq{}, tdk{}, tdv{};       // as dout, dlse, dq, dk and dv
  Dims tdbias{}, tdsinks{}, tdalibi_slopes{};       // as dbias, dsinks and dalibi_slopes
  friend bool operator==(const Layout&, const Layout&) = default;
};

// By role: a power of two, up to 16, that the address of the first element is a multiple of, in bytes. CPU kernels read
// any address: there it is always 16.
using Alignment = std::array<std::uint8_t, kRoles>;
inline constexpr Alignment kAligned = [] {
  Alignment a{};
  a.fill(16);
  return a;
}();

// Its options are a call's, but for max_seqlen_q and max_seqlen_k, which are 0: seq_q and seq_k hold them.
struct Problem : Attention, AppendFields, GemmFields, MergeFields, QuantizeFields, SoftmaxFields {
  Op op = kForward;
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1;
  // Packed: a bound of the lengths, by default the longest. In a cache: the most keys of a sequence.
  std::int64_t seq_q = 0, seq_k = 0;
  std::int64_t dim_qk = 64, dim_v = 64;
  DType dtype = DType::f32;       // of q, k and v; of the partial results; of x and dx
  std::optional<DType> kv_dtype;  // forward, append: of k and v, where they are narrower than q
  DType out_dtype = DType::f32;   // of out and dout: dtype, or fp32 for partial results that will be merged; of an
                                  // fp8_e4m3 q bf16, fp16 or fp32; of y and dy
  std::optional<DescaleSpec> q_descale, k_descale, v_descale;  // of what is fp8_e4m3; none: 1
  std::optional<DescaleSpec> v_mean;  // of an fp8_e4m3 v, what was taken out of it: [batch, heads, columns]; none: 0
  Device device{};
  std::optional<BiasSpec> bias;
  std::optional<BroadcastDims> bool_mask, block_mask;  // block_mask: rows and keys are tiles
  bool alibi = false, sinks = false;
  bool dropout_seed = false;           // the dropout's seed is a tensor, and `seed` is 0
  std::vector<ModBuffer> mod_buffers;  // what score_mod and mask_mod read besides positions and the score
  bool want_lse = false;               // forward, jvp, merge, softmax: write it. A backward always reads it
  Gradients gradients;                 // backward, backward_jvp: at least one
  DType grad_dtype = DType::f32;       // of dq, dk and dv: dtype or fp32; fp32 unless there is a backward
  bool dlse = false;                   // backward: the LSE was used too, and its gradient is given
  bool tbias = false, tsinks = false;  // jvp, backward_jvp: the bias and the sinks have tangents
  bool tdout = false, tdlse = false;   // backward_jvp: dout and dlse have tangents
  bool want_tlse = false;              // jvp: write the LSE's derivative, beside the LSE
  bool want_recomputed = false;        // forward: say which rows phi did not serve
  bool want_row_max = false;           // forward: write the rows' largest scores
  bool entropy = false;                // forward: write the rows' entropies. backward: read them, for dentropy
  bool dentropy = false;               // backward: the gradient of the entropies is given
  bool v_in_k = false;            // forward: v starts where k does and has k's strides: the first dim_v columns of k
  std::optional<Fp8Options> fp8;  // forward: q, k and v are quantized first
  // Variable length: q is [total_q, heads, dim], k and v are [total_k, heads, dim] unless they are a cache.
  bool varlen = false;
  std::int64_t total_q = 0, total_k = 0;
  // The lengths of an example, one per batch entry, which check and bench draw; empty if none is known. cu_seqlens and
  // seqused_k hold those of a call, and a plan is good for all that fit seq_q and seq_k.
  std::vector<std::int64_t> lengths_q, lengths_k;
  // K and V as a cache: only the first seqused_k[b] keys of sequence b count; in pages if page_size > 0: k and v are
  // [pages, page_size, heads_kv, dim], and page_table has max_pages entries for each sequence.
  bool seqused = false;
  std::int64_t page_size = 0, pages = 0, max_pages = 0;
  std::int64_t drafts = 0;  // forward: the last tokens of each sequence, which form a tree; 0: there is none
  Layout layout;
  Alignment alignment = kAligned;

  friend bool operator==(const Problem&, const Problem&) = default;

  std::int64_t tile_q() const { return mask_tile_q == 0 ? kMaskTile : mask_tile_q; }  // of block_mask
  std::int64_t tile_k() const { return mask_tile_k == 0 ? kMaskTile : mask_tile_k; }
  bool paged() const { return page_size > 0; }
  bool packed_k() const { return varlen && !seqused && !paged(); }               // k and v are [total_k, heads, dim]
  DType key_dtype() const { return kv_dtype.value_or(dtype); }                   // of k and v
  std::int64_t group() const { return heads_kv == 0 ? 1 : heads_q / heads_kv; }  // query heads per K/V head
  double effective_scale() const;  // of attention 0 below 2^-126, which kernels flush to 0
};

// q, k, v and out row-major over [batch, heads, seq, dim] (packed: [total, heads, dim]) or [batch, seq, heads, dim],
// all other tensors row-major.
void set_contiguous(Problem& problem);
void set_bshd(Problem& problem);

void validate(const Problem& problem);          // throws Error with one sentence
std::string to_string(const Problem& problem);  // parse(to_string(p)) == p
Problem parse_problem(std::string_view line);   // throws bad_text naming the word; the result is validated

}  // namespace onepass
