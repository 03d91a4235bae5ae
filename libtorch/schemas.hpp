// The operators of PyTorch's dispatcher as torch.library knows them. The Python package and the library without Python
// register these schemas, and read a call's arguments by their positions in the tables.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace onepass::libtorch {

enum class Kind : std::uint8_t { tensor, tensors, text, integer, integers, dtype, number, boolean, booleans };

// An argument of an operator.
struct Item {
  const char* type;  // in a schema
  const char* name;
  const char* value = nullptr;  // the default; nullptr: it must be given

  constexpr std::string_view base() const {
    const std::string_view t = type;
    return t.substr(0, t.size() - optional());
  }
  constexpr bool optional() const { return std::string_view(type).ends_with('?'); }
  constexpr Kind kind() const {
    const std::string_view t = base();
    if (t == "Tensor[]") return Kind::tensors;
    if (t.starts_with("Tensor")) return Kind::tensor;
    if (t == "str") return Kind::text;
    if (t == "SymInt[]") return Kind::integers;
    if (t == "ScalarType") return Kind::dtype;
    if (t == "float") return Kind::number;
    if (t == "bool[]") return Kind::booleans;
    return t == "bool" ? Kind::boolean : Kind::integer;
  }
};

inline constexpr auto kAttentionItems = std::to_array<Item>({
    {"Tensor", "q"},  // gradients flow to the first six
    {"Tensor", "k"},
    {"Tensor", "v"},
    {"Tensor?", "bias", "None"},
    {"Tensor?", "alibi_slopes", "None"},
    {"Tensor?", "sinks", "None"},
    {"Tensor?", "bool_mask", "None"},
    {"Tensor?", "block_mask", "None"},
    {"Tensor?", "cu_seqlens_q", "None"},
    {"Tensor?", "cu_seqlens_k", "None"},
    {"Tensor?", "seqused_k", "None"},
    {"Tensor?", "page_table", "None"},
    {"Tensor?", "tree", "None"},
    {"Tensor?", "q_descale", "None"},
    {"Tensor?", "k_descale", "None"},
    {"Tensor?", "v_descale", "None"},
    {"Tensor?", "v_mean", "None"},
    {"Tensor?", "random_seed", "None"},  // one int64 on the CPU, or q's device; in its absence `seed` counts
    {"Tensor[]?", "mod_buffers", "None"},
    {"str?", "mod_names", "None"},  // joined by commas
    {"str?", "mask", "None"},
    {"SymInt?", "align_offset", "None"},
    {"SymInt", "window_left", "-1"},
    {"SymInt", "window_right", "-1"},
    {"float?", "scale", "None"},
    {"float", "softcap", "0.0"},
    {"float", "dropout_p", "0.0"},
    {"int", "seed", "0"},
    {"SymInt[]?", "dropout_start", "None"},
    {"SymInt?", "mask_tile_q", "None"},
    {"SymInt?", "mask_tile_k", "None"},
    {"SymInt?", "max_seqlen_q", "None"},
    {"SymInt?", "max_seqlen_k", "None"},
    {"bool", "batch_invariant", "False"},
    {"bool", "deterministic", "False"},
    {"str?", "score_mod", "None"},
    {"str?", "mask_mod", "None"},
    {"str?", "implementation", "None"},
    {"int?", "threads", "None"},
    {"ScalarType?", "out_dtype", "None"},
    {"str?", "accumulation", "None"},
    {"float?", "unified_max", "None"},
    {"str?", "fp8", "None"},            // "by_block=0,hadamard=1,center=0,seed=0"
    {"bool", "tokens_first", "False"},  // layout="bshd"
    {"bool", "return_lse", "True"},
    {"bool", "return_max", "False"},
});

// The arguments of a backward before those of attention.
inline constexpr auto kBackwardItems = std::to_array<Item>({
    {"Tensor", "dout"},
    {"Tensor?", "dlse"},
    {"Tensor", "out"},
    {"Tensor", "lse"},
    {"bool[]", "wanted"},
});

inline constexpr auto kAppendItems = std::to_array<Item>({
    {"Tensor", "k_new"},
    {"Tensor", "v_new"},
    {"Tensor(a!)", "k_cache"},
    {"Tensor(b!)", "v_cache"},
    {"Tensor?", "cache_seqlens", "None"},
    {"Tensor?", "page_table", "None"},
    {"Tensor?", "cu_seqlens_q", "None"},
    {"Tensor?", "cos", "None"},
    {"Tensor?", "sin", "None"},
    {"Tensor?", "q", "None"},
    {"Tensor?", "k_descale", "None"},
    {"Tensor?", "v_descale", "None"},
    {"Tensor?", "slot_mapping", "None"},
    {"Tensor?", "positions", "None"},
    {"Tensor?", "cos_sin_cache", "None"},
    {"bool", "interleaved", "False"},
    {"int?", "threads", "None"},
    {"str", "layout", "'bhsd'"},
});

inline constexpr auto kQuantizeItems = std::to_array<Item>({
    {"Tensor", "x"},
    {"str", "factors", "'head'"},
    {"bool", "hadamard", "False"},
    {"int", "seed", "0"},
    {"bool", "mean", "False"},
    {"int?", "threads", "None"},
    {"str", "layout", "'bhsd'"},
});

inline constexpr std::size_t kMaxItems = kAttentionItems.size();  // of a table

inline std::string text_of(std::span<const Item> items) {
  std::string text;
  for (const Item& item : items) {
    text += text.empty() ? "" : ", ";
    text += std::string(item.type) + " " + item.name;
    if (item.value) text += std::string("=") + item.value;
  }
  return text;
}

inline constexpr std::array kOperatorNames = {"attention", "attention_backward", "quantize", "append_kv"};
// In this order.
inline std::array<std::string, kOperatorNames.size()> schemas() {
  return {"attention(" + text_of(kAttentionItems) + ") -> (Tensor out, Tensor lse, Tensor row_max)",
          "attention_backward(" + text_of(kBackwardItems) + ", " + text_of(kAttentionItems) +
              ") -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dalibi_slopes, Tensor dsinks)",
          "quantize(" + text_of(kQuantizeItems) + ") -> (Tensor data, Tensor descale, Tensor mean)",
          "append_kv(" + text_of(kAppendItems) + ") -> Tensor"};
}

constexpr int position_of(std::span<const Item> items, std::string_view name) {
  for (std::size_t i = 0; i < items.size(); ++i)
    if (name == items[i].name) return static_cast<int>(i);
  return -1;
}
// The position of an argument that there is.
template <const auto& items>
consteval int at(std::string_view name) {
  const int i = position_of(items, name);
  if (i < 0) throw "no such argument";
  return i;
}

}  // namespace onepass::libtorch
