// Attention in one call, or as plan -> run.
//
//   out[b,h,i,:] = sum_j softmax_j( scale * q[b,h,i,:] . k[b,h/group,j,:] + ... ) * v[b,h/group,j,:]
//
// A call has three parts: what is computed (Attention), the tensors by role (AttentionTensors), and how it is launched
// (Launch). The order in which softcap, bias, masks, sinks and dropout apply, and what a row without a visible key
// gives (0, and an LSE of -inf), stand in docs/reference/conventions.md.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "onepass/error.hpp"
#include "onepass/executor.hpp"
#include "onepass/export.h"
#include "onepass/launch.hpp"
#include "onepass/options.hpp"
#include "onepass/plan.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

// The tensors of attention, of its backward and of decoding, by role; those that are not given stay absent. [batch,
// heads, seq, dim] with any strides but 1 in the last dimension. q, k and v have one dtype, but k and v may be
// fp8_e4m3, and beside an fp32 q of a forward fp16 or bf16. Outputs share no memory with an input or each other; views
// that interleave, such as slices of one packed tensor, do not.
struct AttentionTensors {
  ConstTensor q{}, k{}, v{};
  Tensor out{};             // of q's dtype or fp32, of an fp8_e4m3 q bf16, fp16 or fp32; a backward reads it, and lse
  Tensor lse{};             // fp32 [batch, heads_q, seq_q]; packed: [heads_q, total_q]
  Tensor recomputed{};      // int32 of lse's shape: 1 where a row left unified_max's range, else 0
  Tensor row_max{};         // fp32 of lse's shape: the row's largest score, -inf if it sees no key
  Tensor entropy{};         // fp32 of lse's shape: the entropy of the row's weights in nats; a backward reads it
  ConstTensor bias{};       // fp32/fp16/bf16 [batch|1, heads_q|1, seq_q|1, seq_k|1], any strides
  ConstTensor bool_mask{};  // bool, same shapes; true = may attend
  // int32 [batch|1, heads_q|1, tiles of rows|1, tiles of keys|1], any strides: a tile of Attention::mask_tile_q rows
  // and mask_tile_k keys is empty (0: hides all of its elements), full (2: mask_mod is not evaluated and counts as
  // true), or mixed (any other number). The other masks hold in all tiles. Positions count within a sequence, as in a
  // mask_mod. BlockMask::states() (onepass/block_mask.hpp) makes it.
  ConstTensor block_mask{};
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
  // int32 [batch, n], n from 1 to 64: the last n tokens of each sequence are drafts. tree[b, i] is the index of draft
  // i's parent among them; a number that is not from 0 to i - 1 (-1) says that it has none. A draft sees the keys
  // before all drafts, its ancestors and itself. Requires causal bottom right; read where the tensors are.
  ConstTensor tree{};
  ConstTensor dropout_seed{};  // int64 [1]: the dropout's seed in place of `Attention::seed`, which is then 0; its bits
                               // are the number's. Read where the tensors are, when the kernels run
  std::vector<NamedTensor> mod_buffers{};

  // For a backward. A gradient that is not given is not computed; one that is given is written whole.
  ConstTensor dout{};        // of out's shape and dtype: the gradient of the loss by out
  ConstTensor dlse{};        // fp32 of lse's shape: by lse, where that was used too
  ConstTensor dentropy{};    // fp32 of lse's shape: by entropy, which must then be given too
  Tensor dq{}, dk{}, dv{};   // of the shapes of q, k and v, all of their dtype or all fp32
  Tensor dbias{}, dsinks{};  // fp32 of the shapes of bias and sinks: sums over what these were repeated for
  Tensor dalibi_slopes{};    // fp32 of the shape of alibi_slopes

  // For jvp(): tangents, of the shapes and dtypes of what they belong to, and what it computes from them.
  ConstTensor tq{}, tk{}, tv{};
  ConstTensor tbias{}, tsinks{};  // absent: 0
  Tensor tout{};                  // of out's shape and dtype: the derivative of out
  Tensor tlse{};                  // fp32 of lse's shape: the derivative of lse, which must be given too

  // For backward_jvp(), beside the inputs of the backward and of jvp(), and jvp()'s tout and tlse: tangents of dout and
  // dlse, of their shapes and dtypes. It computes derivatives of dq to dalibi_slopes, of their shapes and dtypes.
  ConstTensor tdout{}, tdlse{};  // absent: 0
  Tensor tdq{}, tdk{}, tdv{}, tdbias{}, tdsinks{}, tdalibi_slopes{};
};

// ---------------------------------------------------------------------------------------------------------- one call
// Computes attention by the named implementation, or the first that accepts. Without a workspace it takes the memory it
// needs itself. Throws Error, with out and lse untouched, if anything does not fit.
ONEPASS_API void attention(const AttentionTensors& tensors, const Attention& attention = {}, const Launch& launch = {},
                           std::string_view implementation = {});

// The gradients of attention() with the same tensors and description: of those of dq, dk, dv, dbias, dsinks and
// dalibi_slopes that are given. Reads out and lse as the forward wrote them; where these are the merged results of
// several forwards over disjoint keys, each forward's gradients come from the merged ones. Rows that see no key and
// keys that no row sees have gradients of 0. Throws Error, with all outputs untouched, if anything does not fit. Dao et
// al., FlashAttention, algorithm 4; docs/reference/conventions.md.
ONEPASS_API void attention_backward(const AttentionTensors& tensors, const Attention& attention = {},
                                    const Launch& launch = {}, std::string_view implementation = {});

// Forward mode: attention(), into out and lse, and its derivative along the tangents tq, tk, tv, tbias and tsinks, into
// tout and tlse, in one pass over the keys. Rows that see no key have a derivative of 0. Throws Error, with all outputs
// untouched, if anything does not fit. docs/features/forward_mode.md.
ONEPASS_API void jvp(const AttentionTensors& tensors, const Attention& attention = {}, const Launch& launch = {},
                     std::string_view implementation = {});

// Forward mode of attention_backward(): the derivatives of dq, dk, dv, dbias, dsinks and dalibi_slopes along the
// tangents tq, tk, tv, tbias, tsinks, tdout and tdlse, into tdq to tdalibi_slopes, of which at least one is given. out,
// lse, tout and tlse must be results of jvp() along these tangents. With cotangents of dq, dk and dv as tq, tk and tv,
// tdq, tdk and tdv are the gradients of a double backward. Throws Error, with all outputs untouched, if anything does
// not fit. docs/features/second_derivatives.md.
ONEPASS_API void backward_jvp(const AttentionTensors& tensors, const Attention& attention = {},
                              const Launch& launch = {}, std::string_view implementation = {});

// ----------------------------------------------------------------------------------------------------- plan -> run
// The plan of attention with these tensors and options, of its backward if dout is given, of jvp if tout is, or of
// backward_jvp if both are: shapes, strides, alignments, dtypes, options and (on the CPU) the contents of cu_seqlens,
// all checked. Outputs share no memory with each other or with an input, as in run(). Throws as make_plan() of a line
// (onepass/plan.hpp).
[[nodiscard]] ONEPASS_API Plan make_plan(const AttentionTensors& tensors, const Attention& attention = {},
                                         std::string_view implementation = {}, const Executor* executor = nullptr);

// Computes what was planned, on tensors of the planned shapes, strides, dtypes and devices that are at least as
// aligned. Allocates nothing large; the workspace has at least plan.workspace_bytes() bytes, and the first that many
// of them share no memory with a tensor of the call.
ONEPASS_API void run(const Plan& plan, const AttentionTensors& tensors, const Launch& launch = {});

// Every implementation's decision about such a call, a line each. The memory of the tensors is not written.
ONEPASS_API std::string explain(const AttentionTensors& tensors, const Attention& attention = {});

}  // namespace onepass::inline v0
