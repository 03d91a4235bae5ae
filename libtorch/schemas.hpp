// The operators of PyTorch's dispatcher as torch.library knows them. The Python package and the library without Python
// register these schemas, and read a call's arguments by their positions in the tables.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "problem/attention/options.hpp"

namespace onepass::libtorch {

enum class Kind : std::uint8_t { tensor, tensors, text, integer, integers, dtype, number, boolean, booleans };

// An argument of an operator.
struct Item {
  const char* type = "";  // in a schema
  const char* name = "";
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

// An option of the table, by the type of its field.
constexpr Item item_of(const OptionRow& row) {
  return std::visit(
      [&](auto member) -> Item {
        using T = OptionType<decltype(member)>;
        if constexpr (std::is_same_v<T, bool>)
          return {"bool", row.name, "False"};
        else if constexpr (std::is_same_v<T, std::int64_t>)
          return {"SymInt?", row.name, "None"};
        else if constexpr (std::is_same_v<T, std::uint64_t>)
          return {"int", row.name, "0"};
        else if constexpr (std::is_same_v<T, float>)
          return {"float", row.name, "0.0"};
        else if constexpr (std::is_same_v<T, std::optional<double>> || std::is_same_v<T, std::optional<float>>)
          return {"float?", row.name, "None"};
        else if constexpr (std::is_same_v<T, std::array<std::uint32_t, 4>>)
          return {"SymInt[]?", row.name, "None"};
        else
          return {"str?", row.name, "None"};  // also of words; those of a band are mask, align_offset and window
      },
      row.member);
}
consteval Item option(std::string_view name) {
  return item_of(*std::ranges::find(kAttentionOptions, name, &OptionRow::name));
}

// Programs that PyTorch exported name arguments by their positions, so the order stays.
inline constexpr auto kOrderedItems = std::to_array<Item>({
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
    option("scale"),
    option("softcap"),
    option("dropout_p"),
    option("seed"),
    option("dropout_start"),
    option("mask_tile_q"),
    option("mask_tile_k"),
    option("max_seqlen_q"),
    option("max_seqlen_k"),
    option("batch_invariant"),
    option("deterministic"),
    option("score_mod"),
    option("mask_mod"),
    {"str?", "implementation", "None"},
    {"int?", "threads", "None"},
    {"ScalarType?", "out_dtype", "None"},
    option("accumulation"),
    option("unified_max"),
    {"str?", "fp8", "None"},            // "by_block=0,hadamard=1,center=0,seed=0"
    {"bool", "tokens_first", "False"},  // layout="bshd"
    {"bool", "return_lse", "True"},
    {"bool", "return_max", "False"},
});

constexpr bool is_ordered(const OptionRow& row) {
  return std::holds_alternative<Band Attention::*>(row.member) ||
         std::ranges::find(kOrderedItems, std::string_view(row.name), &Item::name) != kOrderedItems.end();
}
// Options that are newer come last.
inline constexpr auto kAttentionItems = [] {
  constexpr auto kNewer = kAttentionOptions.size() - std::ranges::count_if(kAttentionOptions, is_ordered);
  std::array<Item, kOrderedItems.size() + kNewer> all{};
  auto end = std::ranges::copy(kOrderedItems, all.begin()).out;
  for (const OptionRow& row : kAttentionOptions)
    if (!is_ordered(row)) *end++ = item_of(row);
  return all;
}();

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
