// The options of attention, a row each: what the C interface, Python, PyTorch, JAX, problem lines and the command line
// walk. A new option is a row here, its fields in onepass/options.hpp and onepass.h, and the code that computes with
// it.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "onepass/onepass.h"
#include "onepass/options.hpp"
#include "problem/operator.hpp"

namespace onepass {

using OptionMember =
    std::variant<bool Attention::*, std::int64_t Attention::*, std::uint64_t Attention::*, float Attention::*,
                 std::optional<double> Attention::*, std::optional<float> Attention::*, std::string Attention::*,
                 Accumulation Attention::*, Precision Attention::*, Band Attention::*,
                 std::array<std::uint32_t, 4> Attention::*>;

struct OptionRow {
  const char* name;  // of the keyword in Python and PyTorch, and of JAX's attribute
  OptionMember member;
  void (*from_c)(const onepass_options&, Attention&);  // nullptr: several fields, which c_convert.cpp joins
  const char* word = nullptr;            // of problem lines, and of --word on the command line; nullptr: they have none
  const char* help = "";                 // on the command line
  bool forward = true, backward = true;  // whether attention takes it, and attention_backward
};

// The masks that a call names, beside none.
struct NamedMask {
  std::string_view name;
  bool causal;
  Align align;
};
inline constexpr auto kNamedMasks = std::to_array<NamedMask>({{"causal_bottom_right", true, Align::bottom_right},
                                                              {"causal_top_left", true, Align::top_left},
                                                              {"causal_offset", true, Align::offset},
                                                              {"aligned_top_left", false, Align::top_left},
                                                              {"aligned_offset", false, Align::offset}});
// nullptr: it is not one of them.
constexpr const NamedMask* mask_named(std::string_view name) {
  const auto found = std::ranges::find(kNamedMasks, name, &NamedMask::name);
  return found == kNamedMasks.end() ? nullptr : &*found;
}

// The words of an option that is one of two, the default first. Its field is an enum, and C has it as 0 or 1.
constexpr std::array<std::string_view, 2> words_of(Accumulation) { return {"exact", "fast"}; }
constexpr std::array<std::string_view, 2> words_of(Precision) { return {"fp32", "tf32"}; }
template <class T>
concept Choice = std::is_enum_v<T>;

template <Choice T>
constexpr std::optional<T> choice_named(std::string_view word) {
  constexpr auto words = words_of(T{});
  const auto* const at = std::ranges::find(words, word);
  return at == words.end() ? std::nullopt : std::optional(static_cast<T>(at - words.begin()));
}
template <Choice T>
constexpr std::string_view word_of(T x) {
  return words_of(x)[static_cast<std::size_t>(x)];
}

// has: the C field that says whether `from` is set.
template <auto to, auto from, auto has = nullptr>
void option_from_c(const onepass_options& o, Attention& a) {
  using T = std::remove_cvref_t<decltype(a.*to)>;
  if constexpr (!std::is_same_v<decltype(has), std::nullptr_t>) {
    if (o.*has != 0) a.*to = o.*from;
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (o.*from) a.*to = o.*from;
  } else if constexpr (Choice<T>) {
    a.*to = static_cast<T>(o.*from != 0);
  } else if constexpr (std::is_same_v<T, std::array<std::uint32_t, 4>>) {
    std::copy_n(o.*from, 4, (a.*to).begin());
  } else {
    a.*to = static_cast<T>(o.*from);
  }
}

// The first fields of an option that C calls the same.
#define ONEPASS_OPTION(of) \
  .name = #of, .member = &Attention::of, .from_c = option_from_c<&Attention::of, &onepass_options::of>

inline constexpr auto kAttentionOptions = [] {
  using A = Attention;
  using C = onepass_options;
  return std::to_array<OptionRow>({
      {.name = "accumulation",
       .member = &A::accumulation,
       .from_c = option_from_c<&A::accumulation, &C::fast_accumulation>,
       .word = "accumulation",
       .help = "Accumulation of products of fp8_e4m3 q, k and v: exact (default) or fast",
       .backward = false},
      {.name = "band", .member = &A::band, .from_c = nullptr, .word = "band"},
      {.name = "scale",
       .member = &A::scale,
       .from_c = option_from_c<&A::scale, &C::scale, &C::has_scale>,
       .word = "scale",
       .help = "Factor of q.k; default: 1/sqrt(dim)"},
      {.name = "unified_max",
       .member = &A::unified_max,
       .from_c = option_from_c<&A::unified_max, &C::unified_max, &C::has_unified_max>,
       .word = "unified_max",
       .help = "Reference of the weights instead of the row maxima, for few rows (docs/features/flashdecoding_pp.md)",
       .backward = false},
      {ONEPASS_OPTION(softcap), .word = "softcap", .help = "c: scores become c tanh(score / c)"},
      {ONEPASS_OPTION(score_mod), .word = "score_mod",
       .help = "C++ expression: the new score (docs/features/score_mod.md)"},
      {ONEPASS_OPTION(mask_mod), .word = "mask_mod", .help = "C++ expression: true where the query sees the key"},
      {ONEPASS_OPTION(mask_tile_q), .word = "mask_tile_q", .help = "Rows of a tile of --block-mask; default: 128"},
      {ONEPASS_OPTION(mask_tile_k), .word = "mask_tile_k", .help = "Keys of a tile of --block-mask; default: 128"},
      {ONEPASS_OPTION(dropout_p), .word = "dropout", .help = "Dropout probability, from 0 to 1"},
      {ONEPASS_OPTION(seed), .word = "seed", .help = "Seed of the dropout"},
      {ONEPASS_OPTION(dropout_start), .word = "dropout_start",
       .help = "Batch entry, head, row and key (a multiple of 4) of the call's first ones, in the dropout's draws"},
      {ONEPASS_OPTION(deterministic), .word = "deterministic", .help = "With --dout: the same bits in every run",
       .forward = false},
      {ONEPASS_OPTION(batch_invariant), .word = "batch_invariant",
       .help = "Results of a sequence do not depend on the rest of the batch", .backward = false},
      {ONEPASS_OPTION(partial), .word = "partial",
       .help = "out is a part that merge completes: an fp32 out divides by the sum of unrounded weights",
       .backward = false},
      {.name = "precision",
       .member = &A::precision,
       .from_c = option_from_c<&A::precision, &C::tf32>,
       .word = "precision",
       .help = "Precision of products of an fp32 q: fp32 (default) or tf32 (docs/features/precision.md)"},
      {ONEPASS_OPTION(max_seqlen_q)},
      {ONEPASS_OPTION(max_seqlen_k)},
  });
}();

// f(row, member), the member a pointer to a field of Attention.
template <class F>
void for_each_option(F&& f) {
  for (const OptionRow& row : kAttentionOptions) std::visit([&](auto member) { f(row, member); }, row.member);
}
// The type of the field that a member points to.
template <class Member>
using OptionType = std::remove_cvref_t<decltype(std::declval<Attention>().*std::declval<Member>())>;

inline bool same_option(const OptionRow& row, const Attention& a, const Attention& b) {
  return std::visit([&](auto member) { return a.*member == b.*member; }, row.member);
}
inline bool takes_option(const OptionRow& row, bool backward) { return backward ? row.backward : row.forward; }
// Along tangents: what both take; with gradients, what the backward takes.
inline bool takes_option(const OptionRow& row, Op op) {
  return op->tangents && !op->backward ? row.forward && row.backward : takes_option(row, op->backward);
}

}  // namespace onepass
