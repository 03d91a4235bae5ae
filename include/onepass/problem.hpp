// A Problem says what is to be computed, without the data: a plain value, checked once, printed and parsed as one line.
//
//   fwd b2 h16/4 s1024x2048 d128 bf16 causal_bottom_right window=128:0 layout=bshd lse
//
// docs/reference/problem.md holds the grammar. Every interface, test and benchmark uses it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onepass/export.h"
#include "onepass/options.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

// forward: attention. merge: partial results over disjoint keys become one; of the sizes only batch, heads_q, seq_q and
// dim_v, those of out, count. backward: the gradients of a forward, from its O and LSE and the gradient of O. softmax
// and softmax_backward: of rows [batch, heads_q, seq_q] of seq_k numbers each, which are what counts of the sizes.
// quantize: of such rows, to fp8_e4m3.
// flat_gemm: y [m, n] = x [m, k] w [n, k]^T (+ column_bias [n]) of few rows x; of the sizes only these count.
// linear: the same of any number of rows, by the kernel that is fastest for it (onepass/linear.hpp).
// append: seq_q new keys and values of each sequence into a cache of seq_k (onepass/append.hpp).
enum class Op : std::uint8_t {
  forward,
  merge,
  backward,
  softmax,
  softmax_backward,
  quantize,
  flat_gemm,
  linear,
  append
};
inline constexpr std::size_t kOps = 9;

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

// fp8_e4m3 tensors hold a number divided by a descale: fp32 [batch, heads, blocks of 128 rows], of which a dimension
// not spanned has size 1 and is repeated. Blocks are counted within their sequence.
inline constexpr std::int64_t kDescaleRows = 128;
struct DescaleSpec {
  bool batch = false, heads = false, blocks = false;
  friend bool operator==(const DescaleSpec&, const DescaleSpec&) = default;
};

inline constexpr std::size_t kMaxModBuffers = 8;
// A tensor that score_mod and mask_mod read as name[i] or name(i, j, ...). fp32, fp16, bf16, int32 or bool.
struct ModBuffer {
  std::string name;
  DType dtype = DType::f32;
  int rank = 1;
  Dims shape{1, 1, 1, 1};
  friend bool operator==(const ModBuffer&, const ModBuffer&) = default;
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
  k_new,
  v_new,
  k_cache,
  v_cache,
  cos,
  sin,
  q_out
};
inline constexpr std::size_t kRoles = 42;

// An input by the name that score_mod and mask_mod use for it; rank 1 to 4, any strides.
struct NamedTensor {
  std::string name{};
  ConstTensor tensor{};
};

// The tensors of a call by role; those that are not given stay absent. [batch, heads, seq, dim] with any strides but 1
// in the last dimension. Outputs share no memory with an input or each other; views that interleave, such as slices of
// one packed tensor, do not.
struct Tensors {
  ConstTensor q{}, k{}, v{};
  Tensor out{};             // of q's dtype or fp32, of an fp8_e4m3 q bf16, fp16 or fp32; a backward reads it, and lse
  Tensor lse{};             // fp32 [batch, heads_q, seq_q]; packed: [heads_q, total_q]
  Tensor recomputed{};      // int32 of lse's shape: 1 where a row left unified_max's range, else 0
  ConstTensor bias{};       // fp32/fp16/bf16 [batch|1, heads_q|1, seq_q|1, seq_k|1], any strides
  ConstTensor bool_mask{};  // bool, same shapes; true = may attend
  ConstTensor alibi_slopes{};  // fp32 [heads_q] or [batch, heads_q]: s -= slope * |a(i) - j|
  ConstTensor sinks{};         // fp32 [heads_q]: logits that join the denominator only
  // fp32 factors of fp8_e4m3 tensors, [batch|1, heads|1, blocks|1] with blocks of 128 rows of a sequence and the heads
  // of the tensor; dimensions at the end may be left out: [1] is one factor for all. Finite numbers; none: 1.
  ConstTensor q_descale{}, k_descale{}, v_descale{};
  // fp32 [batch|1, heads_kv|1, dim_v|1]: what quantize() took out of an fp8_e4m3 v; it is added to what v stands for.
  ConstTensor v_mean{};
  ConstTensor cu_seqlens_q{},
      cu_seqlens_k{};  // int32 [batch + 1] prefix sums; q, k, v and out are then [total, heads, dim]
  // K and V as a cache, of a forward. cu_seqlens_q packs q and out beside them; there is no cu_seqlens_k then.
  ConstTensor seqused_k{};   // int32 [batch]: how many keys of each sequence count; read where the tensors are
  ConstTensor page_table{};  // int32 [batch, pages of a sequence]: k and v are [pages, page_size, heads_kv, dim], and
                             // key j of a sequence lies in page page_table[b, j / page_size] at j % page_size
  std::vector<NamedTensor> mod_buffers{};

  // For a backward. A gradient that is not given is not computed; one that is given is written whole.
  ConstTensor dout{};        // of out's shape and dtype: the gradient of the loss by out
  ConstTensor dlse{};        // fp32 of lse's shape: by lse, where that was used too
  Tensor dq{}, dk{}, dv{};   // of the shapes of q, k and v, all of their dtype or all fp32
  Tensor dbias{}, dsinks{};  // fp32 of the shapes of bias and sinks: sums over what these were repeated for
  Tensor dalibi_slopes{};    // fp32 of the shape of alibi_slopes

  // For a softmax and its backward (onepass/softmax.hpp), with bool_mask and lse and nothing else.
  ConstTensor x{}, row_lse{};
  Tensor y{};  // a backward reads it
  ConstTensor dy{};
  Tensor dx{};
  // For a flat GEMM (onepass/flat_gemm.hpp), with x and y and nothing else.
  ConstTensor w{}, column_bias{};

  // For a quantize (onepass/quantize.hpp), with x and y and nothing else.
  Tensor descale{}, mean{};

  // For an append (onepass/append.hpp), with q, cu_seqlens_q, seqused_k, page_table and the scales of k and v: what is
  // new, the cache, and the rotation.
  ConstTensor k_new{}, v_new{};
  Tensor k_cache{}, v_cache{};
  ConstTensor cos{}, sin{};
  Tensor q_out{};

  // For a merge, with out and lse and nothing else: partial results, fp32/fp16/bf16 of out's shape, and their fp32
  // LSEs.
  std::vector<ConstTensor> outs{}, lses{};
};

// Which gradients a backward writes.
struct Gradients {
  bool dq = false, dk = false, dv = false, dbias = false, dsinks = false, dalibi_slopes = false;
  friend bool operator==(const Gradients&, const Gradients&) = default;
};

// Strides in elements; 0 in dimensions of size 1 and of tensors that are not given.
struct Layout {
  Dims q{}, k{}, v{}, out{};                        // [batch, heads, seq, dim]; packed: batch stride 0; k and v in
                                                    // pages: [page, heads, token of the page, dim]
  Dims lse{};                                       // [batch, heads, seq]; packed: batch stride 0
  Dims bias{}, bool_mask{};                         // [batch, heads, rows, keys]
  Dims alibi_slopes{};                              // [batch, heads]
  Dims sinks{};                                     // [heads]
  Dims q_descale{}, k_descale{}, v_descale{};       // [batch, heads, blocks]
  Dims v_mean{};                                    // [batch, heads, dim_v]
  Dims cu_seqlens_q{}, cu_seqlens_k{};              // [batch + 1]
  Dims seqused_k{}, page_table{};                   // [batch], [batch, pages of a sequence]
  Dims dout{}, dq{}, dk{}, dv{};                    // as out, q, k and v
  Dims dlse{}, dbias{}, dsinks{}, dalibi_slopes{};  // as lse, bias, sinks and alibi_slopes
  Dims x{}, y{}, dy{}, dx{};                        // [batch, heads, rows, keys]
  Dims row_lse{};                                   // as lse
  Dims descale{}, mean{};                           // [batch, heads, blocks], [batch, heads, numbers of a row]
  Dims w{}, column_bias{};                          // [n, k], as x and y then have two, and [n]
  Dims recomputed{};                                // as lse
  Dims k_new{}, v_new{}, q_out{};                   // as q
  Dims k_cache{}, v_cache{};                        // as k and v of a cache
  Dims cos{}, sin{};                                // [positions, pairs of columns]
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
struct ONEPASS_API Problem : Attention {
  Op op = Op::forward;
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1;
  // Packed: a bound of the lengths, by default the longest. In a cache: the most keys of a sequence.
  std::int64_t seq_q = 0, seq_k = 0;
  std::int64_t dim_qk = 64, dim_v = 64;
  DType dtype = DType::f32;       // of q, k and v; of the partial results; of x and dx
  std::optional<DType> kv_dtype;  // forward, append: of k and v, where it is not q's: fp8_e4m3, an FP8 cache
  DType out_dtype = DType::f32;   // of out and dout: dtype, or fp32 for partial results that will be merged; of an
                                  // fp8_e4m3 q bf16, fp16 or fp32; of y and dy
  std::optional<DescaleSpec> q_descale, k_descale, v_descale;  // of what is fp8_e4m3; none: 1
  std::optional<DescaleSpec> v_mean;  // of an fp8_e4m3 v, what was taken out of it: [batch, heads, columns]; none: 0
  std::int64_t partials = 0;          // merge: how many
  Device device{};
  std::optional<BiasSpec> bias;
  std::optional<BroadcastDims> bool_mask;
  bool alibi = false, sinks = false;
  std::vector<ModBuffer> mod_buffers;  // what score_mod and mask_mod read besides positions and the score
  bool want_lse = false;               // forward, merge, softmax: write it. A backward always reads it
  bool log = false;                    // softmax and its backward: y is the logarithm
  bool lse_only = false;               // softmax: there is no y
  bool row_lse = false;                // softmax: y by the rows' LSEs that are given
  DescaleSpec descale;                 // quantize: what a factor is shared by
  bool hadamard = false;               // quantize: rows are rotated, with signs by the seed
  bool centered = false;               // quantize: the mean of each column is taken out
  std::int64_t m = 0, n = 0, k = 0;    // flat_gemm and linear
  bool column_bias = false;
  Gradients gradients;            // backward: at least one
  DType grad_dtype = DType::f32;  // of dq, dk and dv: dtype or fp32; fp32 unless there is a backward
  bool dlse = false;              // backward: the LSE was used too, and its gradient is given
  bool want_recomputed = false;   // forward: say which rows phi did not serve
  bool v_in_k = false;            // forward: v starts where k does and has k's strides: the first dim_v columns of k
  std::optional<Fp8Options> fp8;  // forward: q, k and v are quantized first
  // append: rotary: the first rotary_dim columns of k_new, and of q if it is there, are rotated by cos and sin of
  // `positions` rows.
  bool rotary = false, interleaved = false, with_q = false;
  std::int64_t rotary_dim = 0, positions = 0;
  DType table_dtype = DType::f32;  // of cos and sin
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
  Layout layout;
  Alignment alignment = kAligned;

  friend bool operator==(const Problem&, const Problem&) = default;

  bool paged() const { return page_size > 0; }
  bool packed_k() const { return varlen && !seqused && !paged(); }               // k and v are [total_k, heads, dim]
  DType key_dtype() const { return kv_dtype.value_or(dtype); }                   // of k and v
  std::int64_t group() const { return heads_kv == 0 ? 1 : heads_q / heads_kv; }  // query heads per K/V head
  double effective_scale() const;
};

// q, k, v and out row-major over [batch, heads, seq, dim] (packed: [total, heads, dim]) or [batch, seq, heads, dim],
// all other tensors row-major.
ONEPASS_API void set_contiguous(Problem& problem);
ONEPASS_API void set_bshd(Problem& problem);

ONEPASS_API void validate(const Problem& problem);          // throws Error with one sentence
ONEPASS_API std::string to_string(const Problem& problem);  // parse(to_string(p)) == p
ONEPASS_API Problem parse_problem(std::string_view line);   // throws bad_text naming the word; the result is validated

}  // namespace onepass::inline v0
