// A struct as C++ source: `{.groups = 3, .cross_tile = true}`.
#pragma once
#include <string>

#include "cuda/device/scalar_type.hpp"

namespace onepass::cuda {

class Initializer {
 public:
  Initializer& field(const char* name, int value) { return put(name, std::to_string(value)); }
  Initializer& field(const char* name, bool value) { return put(name, bool_literal(value)); }
  Initializer& field(const char* name, ScalarType value) { return put(name, name_of(value)); }
  Initializer& field(const char* name, const Initializer& value) { return put(name, value.source()); }
  Initializer& word(const char* name, const char* value) { return put(name, value); }  // an enumerator
  std::string source() const { return "{" + fields_ + "}"; }

  static const char* bool_literal(bool b) { return b ? "true" : "false"; }
  static const char* name_of(ScalarType t) {
    switch (t) {
      case ScalarType::none: return "ScalarType::none";
      case ScalarType::f32: return "ScalarType::f32";
      case ScalarType::f16: return "ScalarType::f16";
      case ScalarType::bf16: return "ScalarType::bf16";
      case ScalarType::e4m3: return "ScalarType::e4m3";
    }
    return "";
  }

 private:
  Initializer& put(const char* name, const std::string& value) {
    fields_ += (fields_.empty() ? "." : ", .") + std::string(name) + " = " + value;
    return *this;
  }
  std::string fields_;
};

}  // namespace onepass::cuda
