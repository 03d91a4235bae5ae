// A problem as its line, and what its words are about (docs/reference/problem.md).
#include "problem/grammar/words.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <variant>

#include "problem/attention/options.hpp"
#include "problem/grammar/subject.hpp"
#include "problem/operator.hpp"

namespace onepass {
namespace {

// ------------------------------------------------------------------------------------------------ attention's options
template <class T>
bool read_option(T& to, const OptionRow& row, const Word& w) {
  const auto value = w.value();
  if constexpr (std::is_same_v<T, bool>) {
    return !value && w.word == row.word && (to = true);
  } else if constexpr (std::is_same_v<T, Band>) {
    return false;  // has rows of its own
  } else if constexpr (Choice<T>) {
    const auto chosen = value ? choice_named<T>(*value) : std::nullopt;
    to = chosen.value_or(to);
    return chosen.has_value();
  } else if constexpr (std::is_same_v<T, std::array<std::uint32_t, 4>>) {
    if (!value) return false;
    const auto items = w.list(*value, ':');
    if (items.size() != to.size()) w.fail("dropout_start=batch:head:row:key");
    std::ranges::transform(items, to.begin(), [&](auto item) { return w.number<std::uint32_t>(item, "an integer"); });
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (value) to = w.expression(*value);
  } else if constexpr (std::is_integral_v<T>) {
    if (value) to = w.number<T>(*value, "an integer");
  } else if constexpr (std::is_floating_point_v<T>) {
    if (value) to = w.number<T>(*value, "a number");
  } else {  // std::optional
    if (value) to = w.number<typename T::value_type>(*value, "a number");
  }
  return value.has_value();
}
template <class T>
std::string option_text(const T& x) {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, Band>)
    return "";
  else if constexpr (Choice<T>)
    return "=" + std::string(word_of(x));
  else if constexpr (std::is_same_v<T, std::array<std::uint32_t, 4>>)
    return "=" + number(x[0]) + ":" + number(x[1]) + ":" + number(x[2]) + ":" + number(x[3]);
  else if constexpr (std::is_same_v<T, std::string>)
    return "={" + x + "}";
  else if constexpr (std::is_arithmetic_v<T>)
    return "=" + number(x);
  else
    return "=" + number(*x);
}

const WordRow* row_about(std::string_view subject) {
  const auto row = std::ranges::find(word_rows(), subject, &WordRow::subject);
  return row == word_rows().end() ? nullptr : &*row;
}
const OptionRow* option_about(std::string_view subject) {
  const auto* row = std::ranges::find_if(
      kAttentionOptions, [&](const OptionRow& option) { return option.word && option.word == subject; });
  return row == kAttentionOptions.end() ? nullptr : row;
}
const RoleRow* tensor_about(std::string_view subject) {
  const auto* row =
      std::ranges::find_if(kRoleTable, [&](const RoleRow& role) { return role.word && role.word == subject; });
  return row == kRoleTable.end() ? nullptr : row;
}

// The word of an option, or of a tensor that is given or not.
std::string plain_text(const Problem& p, std::string_view subject) {
  std::string out;
  if (const OptionRow* row = option_about(subject)) {
    if (same_option(*row, p, {})) return out;
    std::visit([&](auto option) { out = option_text(p.*option); }, row->member);
  } else if (const RoleRow* tensor = tensor_about(subject); !tensor || !tensor->flag || !(p.*tensor->flag)) {
    return out;
  }
  return " " + std::string(subject) + out;
}

// The words that the table does not place.
std::string others_text(const Problem& p) {
  std::string out;
  const auto add = [&](const char* word) {
    if (word && !row_about(word) && speaks_of(p.op, word)) out += plain_text(p, word);
  };
  for (const OptionRow& row : kAttentionOptions)
    if (!std::holds_alternative<Band Attention::*>(row.member)) add(row.word);
  for (const RoleRow& row : kRoleTable) add(row.word);
  return out;
}

}  // namespace

bool read_word(Reading& r, const Word& w) {
  const std::string_view subject = subject_of(w.word);
  if (const RoleRow* row = role_of_strides(subject, r.p.op)) return read_side_strides(r, w, *row);
  if (const WordRow* row = row_about(subject); row && row->read) return row->read(r, w);
  bool read = false;
  if (const OptionRow* row = option_about(subject))
    std::visit([&](auto option) { read = read_option(r.p.*option, *row, w); }, row->member);
  else if (const RoleRow* tensor = tensor_about(subject); tensor && tensor->flag && w.word == subject)
    read = r.p.*tensor->flag = true;
  return read;
}

std::string_view subject_of(std::string_view word) {
  if (word.starts_with("causal") || word.starts_with("aligned")) return "alignment";
  if (const std::size_t equals = word.find('='); equals != word.npos) {
    const std::string_view key = word.substr(0, equals);
    return key == "strides" ? "layout" : key;
  }
  if (op_named(word)) return "operator";
  if (word == "lse_only") return "lse";
  if (word == "cpu" || word.starts_with("cuda")) return "device";
  if (word == "fp32" || word == "fp16" || word == "bf16" || word == "fp8_e4m3") return "dtype";
  return Word{word, word}.is_sized() ? word.substr(0, 1) : word;
}

bool speaks_of(Op op, std::string_view subject) {
  const Operator& of = *op.row;
  if (std::ranges::find(of.words, subject) != of.words.end()) return true;
  if (const RoleRow* row = role_of_strides(subject, op))
    return use_of(*row, op) != Use::none && (row->role != Role::out || !strides_in_one(op));
  if (const RoleRow* row = tensor_about(subject)) return is_optional(*row, op);
  const OptionRow* row = option_about(subject);
  return row && is_attention(op) && takes_option(*row, op);
}

std::string to_string(const Problem& p) {
  std::string line;
  for (const WordRow& row : word_rows()) {
    if (row.subject == kOthers) line += others_text(p);
    if (!speaks_of(p.op, row.subject)) continue;
    const std::string words = row.print ? row.print(p) : plain_text(p, row.subject);
    if (words == kAlone)
      line += " " + std::string(row.subject);
    else
      line += words.starts_with('=') ? " " + std::string(row.subject) + words : words;
  }
  return line;
}

}  // namespace onepass
