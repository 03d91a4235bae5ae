// The names that expressions have: indices, functions, operators; and those of PyTorch's FlexAttention, for hints.
#pragma once
#include <string>
#include <string_view>

#include "expression/expression.hpp"

namespace onepass {

inline constexpr std::string_view kIndices[] = {"batch", "head", "q_index", "k_index"};

struct ModFunction {
  std::string_view name;
  ExprCode code;
  int arguments;
  bool numbers;  // integers become numbers, and C has it with the suffix f; abs, min and max keep integers
};
inline constexpr ModFunction kModFunctions[] = {
    {"abs", ExprCode::abs, 1, false},  {"min", ExprCode::min, 2, false},  {"max", ExprCode::max, 2, false},
    {"fabs", ExprCode::abs, 1, true},  {"fmin", ExprCode::min, 2, true},  {"fmax", ExprCode::max, 2, true},
    {"exp", ExprCode::exp, 1, true},   {"exp2", ExprCode::exp2, 1, true}, {"log", ExprCode::log, 1, true},
    {"log2", ExprCode::log2, 1, true}, {"sqrt", ExprCode::sqrt, 1, true}, {"tanh", ExprCode::tanh, 1, true},
    {"sin", ExprCode::sin, 1, true},   {"cos", ExprCode::cos, 1, true},   {"floor", ExprCode::floor, 1, true},
    {"ceil", ExprCode::ceil, 1, true}};

// Binary operators, the loosest first; those of a level group from the left.
struct ModOperator {
  std::string_view text;
  int level;
  ExprCode code;
};
inline constexpr ModOperator kModOperators[] = {
    {"||", 0, ExprCode::bit_or},     {"or", 0, ExprCode::bit_or},     {"&&", 1, ExprCode::bit_and},
    {"and", 1, ExprCode::bit_and},   {"|", 2, ExprCode::bit_or},      {"^", 3, ExprCode::bit_xor},
    {"&", 4, ExprCode::bit_and},     {"==", 5, ExprCode::equal},      {"!=", 5, ExprCode::not_equal},
    {"<=", 6, ExprCode::less_equal}, {">=", 6, ExprCode::less_equal}, {"<", 6, ExprCode::less},
    {">", 6, ExprCode::less},        {"<<", 7, ExprCode::shift_left}, {">>", 7, ExprCode::shift_right},
    {"+", 8, ExprCode::add},         {"-", 8, ExprCode::subtract},    {"*", 9, ExprCode::multiply},
    {"/", 9, ExprCode::divide},      {"%", 9, ExprCode::remainder},
};
inline constexpr int kLevels = 10;

// "FlexAttention's q_idx is q_index here"; empty for other names.
inline std::string foreign_name(std::string_view name) {
  struct Pair {
    std::string_view theirs, ours;
  };
  constexpr Pair kNames[] = {{"b", "batch"}, {"h", "head"}, {"q_idx", "q_index"}, {"kv_idx", "k_index"}};
  for (const Pair& pair : kNames)
    if (pair.theirs == name) return "FlexAttention's " + std::string(name) + " is " + std::string(pair.ours) + " here";
  // C++ has the word, but it binds as ! does: not x == y would be (!x) == y.
  if (name == "not") return "not is written !(..) here";
  if (name == "where") return "where(c, a, b) is written (c ? a : b) here";
  return {};
}

// A hint about torch.NAME; function: expressions have a function of that name.
inline std::string foreign_function(std::string_view name, bool function) {
  if (name == "where") return "torch.where(c, a, b) is written (c ? a : b) here";
  if (function) return "torch." + std::string(name) + " is " + std::string(name) + " here";
  return "functions of torch are not available; functions such as min, abs and tanh are";
}

}  // namespace onepass
