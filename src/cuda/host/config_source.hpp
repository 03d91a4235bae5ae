// A config as C++ source, by its ONEPASS_FIELDS: `{.input = ScalarType::bf16, .groups = 3, .cross_tile = true}`.
#pragma once
#include <string>
#include <type_traits>

#include "base/text.hpp"
#include "cuda/device/config.hpp"

namespace onepass::cuda {

template <class T>
std::string source_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_enum_v<T>) {
    std::string_view words = enumerators(value);
    const std::string_view type = take_word(words);
    for (int i = 0; i < static_cast<int>(value); ++i) take_word(words);
    return text(type, "::", take_word(words));
  } else {
    std::string fields;
    each_field(value, [&](std::string_view name, const auto& field) {
      fields += text(fields.empty() ? "." : ", .", name, " = ", source_of(field));
    });
    return text("{", fields, "}");
  }
}

// The line of a kernel's config: `constexpr TYPE NAME = {...};` in its namespace, behind the #include of its type.
template <class Config>
std::string config_line(const char* header, const char* scope, const char* type_and_name, const Config& config) {
  return text("#include \"", header, "\"\nnamespace ", scope, " {\nconstexpr ", type_and_name, " = ", source_of(config),
              ";\n}\n");
}

}  // namespace onepass::cuda
