// The names that PyTorch's FlexAttention has for what expressions read, for hints.
#pragma once
#include <string>
#include <string_view>

namespace onepass {

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
