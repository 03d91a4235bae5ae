// A word of a problem line and how its parts are read: numbers, pairs, lists, spreads, lengths.
#pragma once
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/shown.hpp"
#include "base/text.hpp"
#include "onepass/error.hpp"
#include "problem/grammar/text.hpp"
#include "problem/problem.hpp"

namespace onepass {

struct Word {
  std::string_view word, line;

  // The value of `key=value`.
  std::optional<std::string_view> value() const {
    const std::size_t equals = word.find('=');
    return equals == word.npos ? std::nullopt : std::optional(word.substr(equals + 1));
  }
  bool is_sized() const { return word.size() > 1 && word[1] >= '0' && word[1] <= '9'; }  // b2

  [[noreturn]] void fail(const std::string& expected, const std::string& hint = {}) const {
    throw Error(ErrorCode::bad_text, text("cannot read '", shown(word), "' in \"", shown(line, 1000), "\": it must be ",
                                          expected, hint.empty() ? "" : "; ", hint));
  }
  template <class T>
  T number(std::string_view s, const char* expected) const {
    T x{};
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), x);
    if (error != std::errc{} || end != s.data() + s.size()) fail(expected);
    return x;
  }
  // "a<separator>b"; without the separator, b = a (or the word fails if `both`).
  std::pair<std::string_view, std::string_view> halves(std::string_view s, char separator, bool both,
                                                       const char* expected) const {
    const std::size_t at = s.find(separator);
    if (at == s.npos && both) fail(expected);
    return at == s.npos ? std::pair{s, s} : std::pair{s.substr(0, at), s.substr(at + 1)};
  }
  std::pair<std::int64_t, std::int64_t> pair(std::string_view s, char separator, bool both,
                                             const char* expected) const {
    const auto [a, b] = halves(s, separator, both, expected);
    return {number<std::int64_t>(a, expected), number<std::int64_t>(b, expected)};
  }
  std::vector<std::string_view> list(std::string_view s, char separator) const {
    std::vector<std::string_view> out;
    for (std::size_t at; (at = s.find(separator)) != s.npos; s.remove_prefix(at + 1)) out.push_back(s.substr(0, at));
    out.push_back(s);
    return out;
  }
  BroadcastDims spread(std::string_view s) const {
    bool spans[4];
    for (std::size_t i = 0; i < 4; ++i) {
      if (s.size() != 4 || (s[i] != kSpreadLetters[i] && s[i] != '1')) fail("a spread such as bhqk or 11qk");
      spans[i] = s[i] != '1';
    }
    return {spans[0], spans[1], spans[2], spans[3]};
  }
  DescaleSpec descale(std::string_view s, char last = 'n') const {  // bhn
    const char kLetters[] = {'b', 'h', last};
    bool spans[3];
    for (std::size_t i = 0; i < 3; ++i) {
      if (s.size() != 3 || (s[i] != kLetters[i] && s[i] != '1')) fail("a spread of descales such as 111, bh1 or bhn");
      spans[i] = s[i] != '1';
    }
    return {spans[0], spans[1], spans[2]};
  }
  Lengths lengths(std::string_view s) const {
    // A line of text should not allocate without bound, and sums of lengths must fit.
    constexpr std::int64_t kMax = std::int64_t{1} << 20, kLongest = std::int64_t{1} << 40;
    Lengths out;
    if (s.empty()) return out;
    for (std::string_view item : list(s, ',')) {
      const auto [n, times] = halves(item, 'x', false, "");
      const std::int64_t repeat =
          times.data() == n.data() ? 1 : number<std::int64_t>(times, "lengths such as 3,7,128x4");
      if (repeat < 0 || repeat > kMax - static_cast<std::int64_t>(out.size())) fail("at most 1048576 lengths");
      const std::int64_t length = number<std::int64_t>(n, "lengths such as 3,7,128x4");
      if (length < 0 || length > kLongest) fail("lengths from 0 to 2^40");
      out.insert(out.end(), static_cast<std::size_t>(repeat), length);
    }
    return out;
  }
  ModBuffer buffer(std::string_view s) const {  // table:fp32:8x127
    constexpr const char* kForm = "buffer=name:dtype:sizes, such as buffer=table:fp32:8x127";
    const auto [name, rest] = halves(s, ':', true, kForm);
    const auto [dtype, sizes] = halves(rest, ':', true, kForm);
    const auto items = list(sizes, 'x');
    if (items.size() > kMaxRank) fail("at most 4 sizes");
    ModBuffer b{std::string(name), dtype_from_name(dtype), static_cast<int>(items.size()), {1, 1, 1, 1}};
    for (std::size_t i = 0; i < items.size(); ++i) b.shape[i] = number<std::int64_t>(items[i], kForm);
    return b;
  }
  std::string expression(std::string_view s) const {  // {score * 2}
    if (s.size() < 2 || s.front() != '{' || s.back() != '}') fail("an expression in braces");
    return std::string(s.substr(1, s.size() - 2));
  }
  void ask(std::string_view name, Gradients& g) const {
    for (const auto& [gradient, asked] : {std::pair{"dq", &g.dq},
                                          {"dk", &g.dk},
                                          {"dv", &g.dv},
                                          {"dbias", &g.dbias},
                                          {"dsinks", &g.dsinks},
                                          {"dalibi_slopes", &g.dalibi_slopes}}) {
      if (name == gradient && !*asked) return void(*asked = true);
    }
    fail("grads= with some of dq, dk, dv, dbias, dsinks and dalibi_slopes, each once");
  }
  Dims strides(std::string_view s) const {
    const auto items = list(s, ',');
    if (items.size() != 3) fail("strides=q:batch,head,token;k:..;v:..;o:..");
    Dims d{0, 0, 0, 1};
    for (int i = 0; i < 3; ++i) d[i] = number<std::int64_t>(items[i], "three integers");
    return d;
  }
};

}  // namespace onepass
