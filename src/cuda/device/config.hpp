// The parts of a kernel's config, for the host and the device half: element types, and the list of its fields.
#pragma once
#include "algebra/ceil_div.hpp"
#include "algebra/portable.hpp"

// ONEPASS_FIELDS(Config, fields...) inside the struct: ==, and on the host each_field(config, f), which calls
// f(name, value) for each field in its order. A field that is added and not listed does not compile.
// ONEPASS_ENUM(Name, words...); an enumeration, and on the host enumerators(Name{}): "Name, words...".
#ifdef __CUDACC_RTC__
#define ONEPASS_FIELDS(Config, ...) ONEPASS_HD friend constexpr bool operator==(const Config&, const Config&) = default;
#define ONEPASS_ENUM(Name, ...) enum class Name : int { __VA_ARGS__ }
#else
#include <string_view>

#ifdef __clang__  // it takes the names of a binding for shadows of the members
#define ONEPASS_SHADOWED(...)                                                       \
  _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wshadow\"") \
      __VA_ARGS__ _Pragma("clang diagnostic pop")
#else
#define ONEPASS_SHADOWED(...) __VA_ARGS__
#endif
#define ONEPASS_FIELDS(Config, ...)                                         \
  friend constexpr bool operator==(const Config&, const Config&) = default; \
  template <class F>                                                        \
  friend void each_field(const Config& config, const F& f) {                \
    ONEPASS_SHADOWED(const auto& [__VA_ARGS__] = config;)                   \
    ::onepass::name_each(#__VA_ARGS__, f, __VA_ARGS__);                     \
  }
#define ONEPASS_ENUM(Name, ...)                                                      \
  enum class Name : int;                                                             \
  constexpr ::std::string_view enumerators(Name) { return #Name ", " #__VA_ARGS__; } \
  enum class Name : int { __VA_ARGS__ }

namespace onepass {

// Takes the first word of "a, b, c".
constexpr std::string_view take_word(std::string_view& words) {
  const std::size_t end = words.find(',');
  const std::string_view word = words.substr(0, end);
  words.remove_prefix(end == words.npos ? words.size() : end + 2);
  return word;
}
template <class F, class... Values>
void name_each(std::string_view names, const F& f, const Values&... values) {
  (f(take_word(names), values), ...);
}

}  // namespace onepass
#endif

namespace onepass {

ONEPASS_ENUM(ScalarType, none, f32, f16, bf16, e4m3);
ONEPASS_HD constexpr int bytes_of(ScalarType t) {
  switch (t) {
    case ScalarType::none: return 0;
    case ScalarType::f32: return 4;
    case ScalarType::f16:
    case ScalarType::bf16: return 2;
    case ScalarType::e4m3: return 1;
  }
  return 0;
}

}  // namespace onepass
