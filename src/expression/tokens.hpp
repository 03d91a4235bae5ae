// The texts of score_mod and mask_mod: their checks for any backend, before one reads them, and their words.
#pragma once
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "base/shown.hpp"
#include "base/text.hpp"
#include "onepass/error.hpp"

namespace onepass {

inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Limits of a text for every reader: CUDA's compiler, which has no limit of its own, or the CPU's reader, which also
// counts operations (Expression::kMaxSteps).
inline constexpr std::size_t kMaxModText = 16384;  // characters
inline constexpr int kMaxModDepth = 64;            // of expressions that lie in each other

// Throws Error (bad_text): "score_mod, column 9: <what>", the line of `source` and a caret under the column.
[[noreturn]] void fail_at(const char* name, std::string_view source, std::size_t at, const std::string& what);

// Throws unless the text stays one expression wherever it is put: its brackets match, and it has no directive, comment
// or quote. Its length and depth must be within the limits.
void check_mod_text(const char* name, std::string_view source);

// Not a word of C++ or of the expressions' language.
void check_mod_name(std::string_view name);

// The words of an expression, one after the other.
class Tokens {
 public:
  Tokens(const char* name, std::string_view source) : name_(name), source_(source) {}

  std::string_view token() const { return token_; }  // the one in hand; empty at the end
  std::size_t column() const { return begin_; }      // where it begins in the source

  void next() {
    if (back_) {
      back_ = false;
      return;
    }
    while (end_ < source_.size() && is_space(source_[end_])) ++end_;
    begin_ = end_;
    if (end_ < source_.size()) end_ += length(source_.substr(end_));
    token_ = source_.substr(begin_, end_ - begin_);
  }
  void put_back() { back_ = true; }  // next() gives the one in hand once more
  bool next_is(std::string_view wanted) {
    next();
    put_back();
    return token_ == wanted;
  }
  bool accept(std::string_view wanted) {
    if (!next_is(wanted)) return false;
    back_ = false;
    return true;
  }
  void want(std::string_view wanted) {
    if (!accept(wanted)) fail(text("'", wanted, "' is expected"));
  }

  [[noreturn]] void fail(const std::string& what) const {
    fail_at(begin_, token_.empty() ? "the text ends where " + what : text("'", shown(token_), "': ", what));
  }
  [[noreturn]] void fail_at(std::size_t column, const std::string& what) const {
    onepass::fail_at(name_, source_, column, what);
  }

 private:
  static std::size_t length(std::string_view s) {
    std::size_t n = 1;
    if (is_letter(s[0])) {
      while (n < s.size() && (is_letter(s[n]) || is_digit(s[n]))) ++n;
    } else if (is_digit(s[0]) || (s[0] == '.' && s.size() > 1 && is_digit(s[1]))) {
      // As C++ takes a number: letters, digits, points, and a sign after an exponent's e.
      const bool hex = s.starts_with("0x") || s.starts_with("0X");
      for (; n < s.size(); ++n) {
        const bool sign = (s[n] == '+' || s[n] == '-') && (s[n - 1] == 'e' || s[n - 1] == 'E') && !hex;
        if (!is_letter(s[n]) && !is_digit(s[n]) && s[n] != '.' && !sign) break;
      }
    } else {
      constexpr std::string_view kPairs[] = {"||", "&&", "==", "!=", "<=", ">=", "<<", ">>"};
      n = std::find(std::begin(kPairs), std::end(kPairs), s.substr(0, 2)) != std::end(kPairs) ? 2 : 1;
    }
    return n;
  }

  const char* name_;
  std::string_view source_, token_;
  std::size_t begin_ = 0, end_ = 0;
  bool back_ = false;
};

}  // namespace onepass
