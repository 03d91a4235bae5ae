// Writing into a cache: new keys and values go to the ends of their sequences or to given slots, rotated on the way.
#pragma once
#include <string>
#include <string_view>

#include "onepass/executor.hpp"
#include "onepass/export.h"
#include "onepass/launch.hpp"
#include "onepass/plan.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

// The tensors of an append by role; those that are not given stay absent. The data tensors (k_new, v_new, k, v, q and
// q_out) are all fp32, all fp16 or all bf16, but k and v may be fp8_e4m3, and fp16 or bf16 beside fp32, with any
// strides but 1 in the last dimension. The others have any strides.
struct AppendTensors {
  // New tokens: [batch, heads_kv, seq_new, dim]; with cu_seqlens_q or slot_mapping [tokens, heads_kv, dim]. The dims of
  // k and v may differ.
  ConstTensor k_new{}, v_new{};
  // The cache: [batch, heads_kv, capacity, dim]; with page_table or slot_mapping pages [pages, page_size, heads_kv,
  // dim]. Only the places of the new tokens are written.
  Tensor k{}, v{};
  // int32 [batch]: how many keys each sequence has before the call, which does not change them. An attention's
  // seqused_k counts the new ones too.
  ConstTensor cache_seqlens{};
  // In place of cache_seqlens, page_table and cu_seqlens_q: int64 or int32 [tokens], the slot page_size * page + offset
  // of each token. The k and v of a token with a negative slot are skipped.
  ConstTensor slot_mapping{};
  ConstTensor positions{};     // with slot_mapping, cos and sin: int32 or int64 [tokens], each token's row of these
  ConstTensor page_table{};    // int32 [batch, pages of a sequence]; only the entries that new tokens lie in are read
  ConstTensor cu_seqlens_q{};  // int32 [batch + 1] prefix sums; tokens beyond the last are left alone
  // The rotation: [positions, rotary_dim / 2], both fp32 or both of the data's dtype. Without them nothing is rotated.
  ConstTensor cos{}, sin{};
  ConstTensor cos_sin_cache{};  // in place of both: [positions, rotary_dim], cos in the left half of the columns
  // Factors of an fp8_e4m3 k and v, as an attention takes them: fp32 [batch|1, heads_kv|1, blocks of 128 keys|1],
  // positive; dimensions at the end may be left out, none: 1. What is written is the number divided by its factor. With
  // slot_mapping a factor is that of a head or of all.
  ConstTensor k_descale{}, v_descale{};
  // [batch, heads_q, seq_new, dim], packed as k_new is, of k's dim: rotated like the keys. q_out may be q itself.
  ConstTensor q{};
  Tensor q_out{};
};

// Token t of sequence b becomes key p = cache_seqlens[b] + t: in the cache at p, or in page
// page_table[b, p / page_size] at p % page_size. With slot_mapping token t goes to page slot / page_size at
// slot % page_size, and p is positions[t].
//
// k_new and q are rotated by row p of cos and sin (rotary position embedding, Su et al., RoFormer, arXiv:2104.09864,
// section 3.4.2): the pair (x, y) becomes (x cos - y sin, y cos + x sin), in fp32, rounded once. Pair i is elements
// (2i, 2i + 1) if interleaved (the paper's, GPT-J's), else (i, i + rotary_dim / 2) (GPT-NeoX's, Llama's; vLLM's
// is_neox). Elements from rotary_dim on, and all of v, are copied bit for bit. Of an fp8_e4m3 cache all are divided by
// their factors in fp32 instead and rounded once more, cut off at 448; an infinity becomes NaN.
//
// Outputs share no memory with an input or each other, but for a q_out that is q. Throws Error, with all outputs
// untouched, if anything does not fit; on the CPU also if a length, a page, or a row of cos is out of range, or two
// tokens have one place. On a device, which alone knows the numbers, a token that is out of range is left out whole:
// nothing of it is written, q_out neither. Of two tokens with one slot a device may write parts of both. A slot says
// nothing about q: that of a token with a negative slot, or on a device with one behind the cache, is rotated.
//
// The CPU takes the executor of `launch`, a device its stream. The first call of a kind loads its kernel, and so cannot
// be captured into a CUDA graph, as later ones can.
ONEPASS_API void append_kv(const AppendTensors& tensors, bool interleaved = false, const Launch& launch = {});

[[nodiscard]] ONEPASS_API Plan make_plan(const AppendTensors& tensors, bool interleaved = false,
                                         std::string_view implementation = {}, const Executor* executor = nullptr);
ONEPASS_API void run(const Plan& plan, const AppendTensors& tensors, const Launch& launch = {});
ONEPASS_API std::string explain(const AppendTensors& tensors, bool interleaved = false);

}  // namespace onepass::inline v0
