#include "problem/grammar/foreign_words.hpp"

#include <array>

namespace onepass {
namespace {

// A name may stand in several rows, and a row answers several names.
struct Row {
  std::string_view names;  // with a blank before and behind each
  std::string_view theirs;
  std::array<std::string_view, 3> ours;  // by Dialect; "": the dialect has no such option
};
constexpr Row kRows[] = {
    {" causal is_causal ",
     "causal=True of flash-attn",
     {"mask='causal_bottom_right'", "causal_bottom_right", "--mask causal_bottom_right"}},
    {" causal is_causal ",
     "is_causal=True of PyTorch",
     {"mask='causal_top_left'", "causal_top_left", "--mask causal_top_left"}},
    {" causal_lower_right lower_right ",
     "causal_lower_right of PyTorch",
     {"mask='causal_bottom_right'", "causal_bottom_right", "--mask causal_bottom_right"}},
    {" causal_upper_left upper_left ",
     "causal_upper_left of PyTorch",
     {"mask='causal_top_left'", "causal_top_left", "--mask causal_top_left"}},
    {" attn_mask attention_mask attn_bias key_padding_mask ",
     "a boolean attn_mask of PyTorch",
     {"bool_mask", "mask=bhqk", "--bool-mask"}},
    {" attn_mask attention_mask attn_bias ", "an additive attn_mask of PyTorch", {"bias", "bias=fp32:bhqk", "--bias"}},
    {" softmax_scale sm_scale ", "softmax_scale of flash-attn", {"scale", "scale=0.125", "--scale"}},
    {" logits_soft_cap soft_cap logit_softcapping ",
     "logits_soft_cap of FlashInfer",
     {"softcap", "softcap=30", "--softcap"}},
    {" window_size window_left ",
     "window_size of flash-attn",
     {"window=(left, right)", "window=left:right", "--window LEFT:RIGHT"}},
    {" sliding_window ", "sliding_window=n of transformers", {"window=(n - 1, 0)", "window=n-1:0", "--window n-1:0"}},
    {" local_window_size ",
     "local_window_size of jax.nn",
     {"window=(left, right) with mask='aligned_top_left'", "window=left:right aligned_top_left",
      "--window LEFT:RIGHT --mask aligned_top_left"}},
    {" dropout dropout_rate attention_dropout ", "dropout", {"dropout_p with a seed", "dropout=0.1", "--dropout"}},
    {" s_aux sink attention_sinks ", "s_aux of flash-attn", {"sinks", "sinks", "--sinks"}},
    {" cache_seqlens kv_lens seq_lens context_lens ",
     "cache_seqlens of flash-attn",
     {"seqused_k, which counts the new tokens", "seqused", "--seqused-k"}},
    {" seqused_k ",
     "seqused_k of attention",
     {"cache_seqlens of append_kv, which counts without the new tokens", "", "--cache-seqlens of append"}},
    {" key_value_seq_lengths ", "key_value_seq_lengths of jax.nn", {"seqused_k", "seqused", "--seqused-k"}},
    {" block_table block_tables ", "block_table of flash-attn", {"page_table", "kv=paged:16", "--page-table"}},
    {" cu_seqlens cu_seq_lens seqlens query_seq_lengths ",
     "cu_seqlens of flash-attn",
     {"cu_seqlens_q and cu_seqlens_k", "varlen=3,7", "--cu-seqlens-q and --cu-seqlens-k"}},
    {" cu_seqlens_q cu_seqlens_k cu_seq_lens_q cu_seq_lens_k ",
     "cu_seqlens_q of flash-attn",
     {"cu_seqlens_q, and so for k,", "varlen=3,7", "--cu-seqlens-q"}},
    {" max_seqlen ", "max_seqlen of flash-attn", {"max_seqlen_q and max_seqlen_k", "", ""}},
    {" return_softmax_lse return_attn_probs return_residual return_aux ",
     "return_softmax_lse=True of flash-attn",
     {"return_lse=True", "lse", "--lse FILE"}},
    {" softmax_lse ", "softmax_lse of flash-attn", {"lse", "lse", "--lse"}},
    {" enable_gqa ",
     "enable_gqa=True of PyTorch",
     {"implied by the shapes: heads_q may be a multiple of heads_kv", "h16/4", "implied by the shapes"}},
    {" num_heads num_kv_heads num_heads_kv ", "num_heads", {"implied by the shapes", "h16/4", "implied by the shapes"}},
    {" rotary_cos rotary_sin ",
     "rotary_cos of flash-attn",
     {"cos of append_kv, and so for sin,", "", "--cos of append"}},
    {" is_neox is_neox_style ", "is_neox=True of vLLM", {"interleaved=False of append_kv", "", "no --interleaved"}},
    {" rotary_interleaved ", "rotary_interleaved of flash-attn", {"interleaved of append_kv", "", "--interleaved"}},
    {" num_splits pack_gqa ",
     "num_splits of flash-attn",
     {"chosen by the plan", "chosen by the plan", "chosen by the plan"}},
    {" key ", "key of PyTorch", {"k", "", "--k"}},
    {" query ", "query of PyTorch", {"q", "", "--q"}},
    {" value ", "value of PyTorch", {"v", "", "--v"}},
};

}  // namespace

std::string foreign_word(std::string_view name, Dialect dialect) {
  const std::string wanted = ' ' + std::string(name) + ' ';
  std::string sentence;
  for (const Row& row : kRows) {
    const std::string_view ours = row.ours[static_cast<std::size_t>(dialect)];
    if (ours.empty() || row.names.find(wanted) == row.names.npos) continue;
    sentence.append(sentence.empty() ? "" : "; ").append(row.theirs).append(" is ").append(ours);
  }
  return sentence;
}

}  // namespace onepass
