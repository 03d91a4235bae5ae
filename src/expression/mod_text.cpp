#include "base/text.hpp"
#include "expression/tokens.hpp"

#include <algorithm>
#include <vector>

#include "base/shown.hpp"

namespace onepass {

void fail_at(const char* name, std::string_view source, std::size_t at, const std::string& what) {
  at = std::min(at, source.size());
  const std::string_view before = source.substr(0, at);
  const std::size_t begin = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
  std::string line(source.substr(begin, std::min(source.find('\n', at), source.size()) - begin));
  std::string indent(before.substr(begin));
  std::replace_if(indent.begin(), indent.end(), [](char c) { return c != '\t'; }, ' ');
  // A byte for a byte, so that the caret stays under its column; of a long line what lies around it.
  const auto unprintable = [](unsigned char c) { return (c < 0x20 && c != '\t') || c >= 0x7f; };
  std::replace_if(line.begin(), line.end(), unprintable, '?');
  constexpr std::size_t kBefore = 100, kShown = 200;
  const std::size_t cut = indent.size() > kBefore ? indent.size() - kBefore : 0;
  line = line.substr(cut, kShown) + (line.size() > cut + kShown ? ".." : "");
  indent.erase(0, cut);
  const auto lines = std::count(before.begin(), before.end(), '\n') + 1;
  throw Error(ErrorCode::bad_text, text(name, ", ", lines > 1 ? text("line ", lines, ", ") : std::string(), "column ",
                                        at - begin + 1, ": ", what, "\n  ", line, "\n  ", indent, "^"));
}

void check_mod_text(const char* name, std::string_view source) {
  if (source.size() > kMaxModText) {
    throw Error(ErrorCode::bad_text,
                text(name, " must have at most ", kMaxModText, " characters (got ", source.size(), ")"));
  }
  std::string open;  // the brackets that must still come
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    const auto code = static_cast<unsigned char>(c);
    if ((code < 0x20 && !is_space(c)) || code >= 0x7f) {
      const std::string byte = shown(source.substr(i, 1));
      fail_at(name, source, i, text("'", byte, "': an expression must be printable ASCII"));
    }
    if (c == '#' || c == '"' || c == '\'' || c == '\\' || c == '$' || c == '@' || c == '`')
      fail_at(name, source, i, text("an expression does not support '", c, "'"));
    const std::string_view pair = source.substr(i, 2);
    for (const std::string_view refused : {"//", "/*", "%:", "<:", ":>", "<%", "%>"})
      if (pair == refused)
        fail_at(name, source, i, text("'", pair, "': an expression does not support comments or digraphs"));
    if (c == ';' && open.find('}') == open.npos) fail_at(name, source, i, "';': the text must be one expression");
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
      places.push_back(i);
      if (places.size() > static_cast<std::size_t>(kMaxModDepth))
        fail_at(name, source, i, text("brackets must be nested at most ", kMaxModDepth, " deep"));
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail_at(name, source, i, text("'", c, "' must close an open bracket"));
      open.pop_back();
      places.pop_back();
    }
  }
  if (!open.empty()) fail_at(name, source, places.back(), text("'", source[places.back()], "' must be closed"));
}

void check_mod_name(std::string_view name) {
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::bad_text, text("the mod buffer name ", why, " (got '", shown(name, 64), "')"));
  };
  if (name.empty() || !is_letter(name[0]) || name[0] == '_' || name.size() > 64 ||
      !std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || is_digit(c); }))
    refuse("must be a letter and up to 63 letters, digits and underscores");
  constexpr std::string_view kWords =
      " score batch head q_index k_index int float bool true false INFINITY abs fabs fabsf min fmin fminf max fmax "
      "fmaxf exp expf exp2 exp2f log logf log2 log2f sqrt sqrtf tanh tanhf sin sinf cos cosf floor floorf ceil ceilf "
      "alignas alignof and "
      "and_eq asm auto bitand bitor break case catch char char8_t char16_t char32_t class compl concept const "
      "consteval "
      "constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double "
      "dynamic_cast else enum explicit export extern for friend goto if inline long mutable namespace new noexcept not "
      "not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return short "
      "signed "
      "sizeof static static_assert static_cast struct switch template this thread_local throw try typedef typeid "
      "typename union unsigned using virtual void volatile wchar_t while xor xor_eq DEV ";
  if (kWords.find(" " + std::string(name) + " ") != kWords.npos) refuse("must not be a reserved word");
}

}  // namespace onepass
