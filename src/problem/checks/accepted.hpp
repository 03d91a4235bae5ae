// The element types that a caller's tensor may have, as a sentence names them in the words of frameworks.
#pragma once
#include "problem/role_row.hpp"

namespace onepass {

inline const char* accepted_of(Types types) {
  switch (types) {
    case Types::boolean: return "bool";
    case Types::f32: return "float32";
    case Types::i32: return "int32";
    case Types::i64: return "int64";
    case Types::index: return "int32 or int64";
    case Types::query:
    case Types::key_value: return "float32, float16, bfloat16 or float8_e4m3fn";
    default: return "float32, float16 or bfloat16";
  }
}
inline constexpr char kMod[] = "float32, float16, bfloat16, int32 or bool";

}  // namespace onepass
