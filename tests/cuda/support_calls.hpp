// The calls of the tables of docs/reference/support.md. A line of a call is the table's first words, and the words of a
// row, of a column and of an option.
#pragma once
#include <string>
#include <vector>

namespace onepass::cuda {

struct Words {
  std::string label, words;
};
struct Matrix {
  std::string title, call;            // the first words of each line
  std::string rows_are, columns_are;  // in the head; columns_are: before the first
  std::vector<Words> rows, options, columns;
};

inline const std::vector<Words> kDevices = {{"CPU", ""},        {"8.0", "sm_80"},   {"8.6", "sm_86"},
                                            {"8.7", "sm_87"},   {"8.9", "sm_89"},   {"9.0", "sm_90"},
                                            {"10.0", "sm_100"}, {"10.3", "sm_103"}, {"12.0", "sm_120"}};
inline const std::vector<Words> kHeads = {{"64", "h8/2 d64"},   {"128", "h8/2 d128"}, {"192/128", "h8/2 d192/128"},
                                          {"256", "h8/2 d256"}, {"72", "h8/2 d72"},   {"59", "h8/2 d59"}};
inline const std::vector<Words> kFloats = {{"fp32", "fp32"}, {"fp16", "fp16"}, {"bf16", "bf16"}};
inline const std::vector<Words> kMasks = {{"no option", ""},
                                          {"causal", "causal_bottom_right"},
                                          {"window", "window=64:0"},
                                          {"boolean mask", "mask=11qk"},
                                          {"mask_mod", "mask_mod={q_index >= k_index}"},
                                          {"bias", "bias=fp32:1hqk"},
                                          {"ALiBi", "alibi"},
                                          {"softcap", "softcap=30"},
                                          {"sinks", "sinks"},
                                          {"score_mod", "score_mod={score * 2}"},
                                          {"dropout", "dropout=0.1"},
                                          {"dropout_seed", "dropout=0.1 dropout_seed"}};

inline std::vector<Words> operator+(std::vector<Words> a, const std::vector<Words>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline const std::vector<Words> kWide = kHeads + std::vector<Words>{{"512", "h8/2 d512"}};
inline const std::vector<Words> kMla = kWide + std::vector<Words>{{"576/512", "h16/1 d576/512 v_in_k"}};
inline const std::vector<Words> kForwardRows =
    kFloats + std::vector<Words>{{"fp8_e4m3", "fp8_e4m3"}, {"FP8 cache", "bf16 kv_dtype=fp8_e4m3"}};
inline const std::vector<Words> kForwardOptions = kMasks + std::vector<Words>{{"batch_invariant", "batch_invariant"},
                                                                              {"tree", "tree=8 causal_bottom_right"},
                                                                              {"row_max", "row_max"},
                                                                              {"entropy", "entropy"}};

inline const std::vector<Matrix> kMatrices = {
    {"Forward", "fwd s512", "q, k, v", "head dim", kForwardRows, kForwardOptions, kMla},
    {"Forward with fp8: q, k and v are quantized first", "fwd s512 fp8", "q, k, v", "head dim", kFloats,
     kForwardOptions, kHeads},
    {"Forward of packed sequences", "fwd varlen=200,312", "q, k, v", "head dim", kForwardRows, kForwardOptions, kMla},
    {"Prompts on a cache in pages", "fwd b2 s100x900 kv=paged:16 seqused", "q, k, v", "head dim", kForwardRows,
     kForwardOptions, kMla},
    {"Single tokens on a cache in pages", "fwd b4 s1x900 kv=paged:16 seqused", "q, k, v", "head dim", kForwardRows,
     kForwardOptions, kMla},
    {"Single tokens with unified_max", "fwd b4 s1x900 kv=paged:16 seqused unified_max=0", "q, k, v", "head dim",
     kForwardRows, kForwardOptions, kMla},
    {"Prompts and single tokens in one call", "fwd varlen=1,1,100 s100x900 kv=paged:16 seqused", "q, k, v", "head dim",
     kForwardRows, kForwardOptions, kMla},
    {"Backward", "bwd s512", "q, k, v", "head dim", kFloats + std::vector<Words>{{"fp8_e4m3", "fp8_e4m3"}},
     kMasks + std::vector<Words>{{"dlse", "dlse"},
                                 {"dentropy", "entropy dentropy"},
                                 {"fp32 gradients", "grad=fp32"},
                                 {"dbias", "bias=fp32:1hqk grads=dq,dk,dv,dbias"},
                                 {"dsinks", "sinks grads=dq,dk,dv,dsinks"},
                                 {"dalibi_slopes", "alibi grads=dq,dk,dv,dalibi_slopes"},
                                 {"deterministic", "deterministic"},
                                 {"deterministic dbias", "deterministic bias=fp32:11qk grads=dq,dk,dv,dbias"},
                                 {"dbias with dropout", "dropout=0.1 bias=fp32:1hqk grads=dq,dk,dv,dbias"}},
     kWide + std::vector<Words>{{"576/512", "h16/1 d576/512"}}},
    {"Backward of packed sequences", "bwd varlen=200,312", "q, k, v", "head dim", kFloats,
     kMasks + std::vector<Words>{{"deterministic", "deterministic"}}, kWide},
    {"Forward mode", "jvp s512", "q, k, v", "head dim", kFloats, kMasks, kWide},
    {"Forward mode of packed sequences", "jvp varlen=200,312", "q, k, v", "head dim", kFloats, kMasks, kWide},
    {"Second derivatives", "bwd_jvp s512", "q, k, v", "head dim", kFloats, kMasks, kWide},
    {"Second derivatives of packed sequences", "bwd_jvp varlen=200,312", "q, k, v", "head dim", kFloats, kMasks, kWide},
    {"Other operators",
     "",
     "operator",
     "dtype",
     {{"append_kv", "append b2 h4/2 s5x300 d64 q rotary=64"},
      {"append_kv by slots", "append h4/2 s37x640 d64 slots kv=paged:16 q rotary=64"},
      {"append_kv to an FP8 cache", "append b2 h4/2 s5x300 d64 q rotary=64 kv_dtype=fp8_e4m3"},
      {"merge", "merge n3 h8 s16 d64"},
      {"softmax", "softmax b2 h4 s8x1000"},
      {"softmax_backward", "softmax_bwd b2 h4 s8x1000"},
      {"quantize", "quantize h8 s512x64"},
      {"flat_gemm", "flat_gemm m8 n4096 k4096"},
      {"linear of 1 row", "linear m1 n4096 k4096"},
      {"linear of 300 rows", "linear m300 n4096 k4096"}},
     {{"", ""}},
     kFloats + std::vector<Words>{{"fp8_e4m3", "fp8_e4m3"}}}};

}  // namespace onepass::cuda
