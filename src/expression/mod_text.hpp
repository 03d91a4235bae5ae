// Checks of the texts of score_mod and mask_mod and of the names of their buffers, for any backend, before one reads
// them.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "onepass/error.hpp"

namespace onepass {

inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Limits of a text for every reader: CUDA's compiler, which has no limit of its own, or the CPU's reader, which also
// counts operations (Expression::kMaxSteps).
inline constexpr std::size_t kMaxModText = 4096;  // characters
inline constexpr int kMaxModDepth = 64;           // of expressions that lie in each other

// Throws Error (bad_text): "score_mod, column 9: <what>", the line of `source` and a caret under the column.
[[noreturn]] void fail_at(const char* name, std::string_view source, std::size_t at, const std::string& what);

// So that a text stays one expression wherever it is put: brackets match, no directive, comment or quote; and that it
// is no longer and no deeper than the limits.
void check_mod_text(const char* name, std::string_view source);

// Not a word of C++ or of the expressions' language.
void check_mod_name(std::string_view name);

}  // namespace onepass
