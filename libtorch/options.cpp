#include "libtorch/options.hpp"

#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "base/text.hpp"
#include "problem/attention/options.hpp"

namespace onepass::libtorch {
namespace {

consteval int item(std::string_view name) { return at<kAttentionItems>(name); }

Band band_of(const Arguments& a) {
  Band band;
  const auto mask = a.text(item("mask"));
  if (mask) {
    const NamedMask* const found = mask_named(*mask);
    if (!found) {
      std::string names = "None";
      for (const NamedMask& known : kNamedMasks) names += ", '" + std::string(known.name) + "'";
      throw Error(ErrorCode::bad_value, text("mask must be one of ", names, " (got '", *mask, "')"));
    }
    band.causal = found->causal;
    band.align = found->align;
  }
  const auto offset = a.integer(item("align_offset"));
  want((band.align == Align::offset) == offset.has_value(), ErrorCode::bad_value,
       "align_offset must be given with mask 'causal_offset' or 'aligned_offset', and only with these");
  band.offset = offset.value_or(0);
  band.left = *a.integer(item("window_left"));
  band.right = *a.integer(item("window_right"));
  return band;
}

float narrow(const char* name, double x) {
  const float y = static_cast<float>(x);
  want(x == 0 || y != 0, ErrorCode::bad_value, name, " must be 0 or a number that float32 holds (got ", x, ")");
  return y;
}

template <class T>
void take(T& to, const Arguments& a, int i, const char* name) {
  if constexpr (std::is_same_v<T, bool>) {
    to = a.boolean(i);
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    const auto given = a.integer(i);
    want(!given || *given >= 1, ErrorCode::bad_value, name, " must be None or a positive integer (got ",
         given.value_or(0), ")");
    to = given.value_or(0);
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    to = static_cast<std::uint64_t>(*a.integer(i));
  } else if constexpr (std::is_same_v<T, float>) {
    to = narrow(name, *a.number(i));
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    to = a.number(i);
  } else if constexpr (std::is_same_v<T, std::optional<float>>) {
    if (const auto given = a.number(i)) to = narrow(name, *given);
  } else if constexpr (std::is_same_v<T, std::string>) {
    to = a.text(i).value_or("");
  } else if constexpr (Choice<T>) {
    const auto [standard, other] = words_of(T{});
    const std::string_view word = a.text(i).value_or(standard);
    const auto chosen = choice_named<T>(word);
    want(chosen.has_value(), ErrorCode::bad_value, name, " must be '", standard, "' or '", other, "' (got '", word,
         "')");
    to = *chosen;
  } else if constexpr (std::is_same_v<T, Band>) {
    to = band_of(a);
  } else {
    static_assert(std::is_same_v<T, std::array<std::uint32_t, 4>>);
    if (!a.given(i)) return;
    const auto numbers = a.integers(i);
    constexpr auto kMost = std::numeric_limits<std::uint32_t>::max();
    bool fits = numbers.size() == to.size();
    for (std::size_t n = 0; fits && n < to.size(); ++n) {
      fits = numbers[n] >= 0 && numbers[n] <= kMost;
      to[n] = static_cast<std::uint32_t>(numbers[n]);
    }
    want(fits, ErrorCode::bad_value, name, " must be four integers (batch, head, row, key) from 0 to 2^32 - 1");
  }
}

// "by_block=0,hadamard=1,center=0,seed=0"
Fp8Options fp8_of(std::string_view words) {
  Fp8Options options;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(','));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    const std::size_t equals = word.find('=');
    std::uint64_t value = 0;
    const std::string_view name = word.substr(0, equals);
    const auto whole = [&](const std::from_chars_result& to) { return to.ec == std::errc() && to.ptr == word.end(); };
    const bool read =
        equals != word.npos && whole(std::from_chars(word.data() + equals + 1, word.data() + word.size(), value));
    if (read && name == "by_block")
      options.by_block = value != 0;
    else if (read && name == "hadamard")
      options.hadamard = value != 0;
    else if (read && name == "center")
      options.center = value != 0;
    else if (read && name == "seed")
      options.seed = value;
    else
      throw Error(ErrorCode::bad_value,
                  text("fp8 must be words such as by_block=0,hadamard=1,center=0,seed=0 (got '", word, "')"));
  }
  return options;
}

}  // namespace

CallOptions options_of(Op op, const Arguments& a) {
  static const std::array positions = [] {
    std::array<int, kAttentionOptions.size()> all;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const OptionRow& row = kAttentionOptions[i];
      all[i] = position_of(kAttentionItems, std::holds_alternative<Band Attention::*>(row.member) ? "mask" : row.name);
      want(all[i] >= 0, ErrorCode::internal, "PyTorch's operator has no option ", row.name);
    }
    return all;
  }();
  CallOptions options;
  const double dropout = *a.number(item("dropout_p"));
  want(dropout >= 0 && dropout <= 1, ErrorCode::bad_value, "dropout_p must be from 0 to 1 (got ", dropout, ")");
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const OptionRow& row = kAttentionOptions[i];
    if (!takes_option(row, is_backward(op))) continue;
    std::visit([&](auto member) { take(options.*member, a, positions[i], row.name); }, row.member);
  }
  if (const auto words = a.text(item("fp8")); words && !is_backward(op)) options.fp8 = fp8_of(*words);
  return options;
}

bool tokens_first(std::string_view layout) {
  want(layout == "bhsd" || layout == "bshd", ErrorCode::bad_value, "layout must be 'bhsd' or 'bshd' (got '", layout,
       "')");
  return layout == "bshd";
}

}  // namespace onepass::libtorch
